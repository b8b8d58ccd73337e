package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
)

// supervisedFile is locked by the supervisor of an allocation, as long as it lives: who is
// in another PID namespace sees that, and no process.
const supervisedFile = "supervised"

// Supervise makes this process the one supervisor that runs in the directory, until
// release. The kernel gives the lock back when the process dies. INV-14.
func (a Attempt) Supervise() (release func(), err error) {
	path := filepath.Join(a.path, supervisedFile)
	l, err := lockfile.Take(path)
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeAlreadyExists, "another supervisor of attempt %s runs (process %s)", a.ID, lockfile.Holder(path))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the directory of attempt %s cannot be written: %w", a.ID, err)
	}
	return func() { _ = l.Release() }, nil // the process ends with it at the latest
}

// Sees reports whether processes of the directory are seen from here, and can be ended.
func (a Attempt) Sees() bool {
	of, ok := a.Allocation()
	return !ok || of.PIDNamespace == PIDNamespace()
}

// Runs reports whether who left the mark lives: by its process, or by its lock where that
// is not seen.
func (a Attempt) Runs(m Mark) bool {
	if a.Sees() {
		return m.Alive()
	}
	return a.supervised()
}

// Unseen refuses a directory whose supervisor lives where it is not seen: nobody could end
// it from here, and none may be started beside it.
func (a Attempt) Unseen() error {
	if a.Sees() || !a.supervised() {
		return nil
	}
	of, _ := a.Allocation()
	return protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s (job %s) runs where this process does not see it (%s, not %s), and could not end it: start bivouac-edge where it ran before, with Nomad's raw_exec driver, or wait for the end of the job",
		a.ID, of.Job, of.PIDNamespace, PIDNamespace())
}

// supervised reports a lock that somebody has. Where that cannot be told, somebody has.
func (a Attempt) supervised() bool {
	f, err := os.Open(filepath.Join(a.path, supervisedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	l, err := lockfile.Hold(f)
	if err != nil {
		_ = f.Close() // the refusal says it
		return true
	}
	_ = l.Release() // nobody had it
	return false
}

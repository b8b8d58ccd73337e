// Package lockfile makes one process the only one on a directory.
//
// It guarantees that a lock ends with its process, whichever way that ends, and
// with Release even when a child of the process is between fork and exec: such a
// child shares the open file, and closing alone would leave the lock to it. The
// descriptor is closed in every program that is started (O_CLOEXEC). It refuses
// to wait: a held lock is an answer, unless its holder is dead, or has not said who it
// is. Then such a child has outlived it, as when a daemon is killed and started again
// at once, and lets go in a moment, which on a machine that is short of everything is
// long. Test it with go test alone.
package lockfile

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrHeld is the answer when another process, or another part of this one, has
// the lock.
var ErrHeld = errors.New("the lock is held")

// How long a child may take from fork to exec after its parent died, on a machine
// that is busy, and how often the lock is tried meanwhile. No living holder is waited
// for, so this costs nobody anything but a refusal that would be wrong.
const outlived, again = time.Minute, 10 * time.Millisecond

// unknown is the holder of a lock whose file says nothing.
const unknown = "(unknown)"

// Lock is a held lock.
type Lock struct{ f *os.File }

// Take locks the file at path, which it makes when it is missing. While the lock
// is held the file has the number of the process, for people.
func Take(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // with O_CLOEXEC, as always in Go
	if err != nil {
		return nil, err
	}
	err = lock(f)
	for began := time.Now(); errors.Is(err, ErrHeld) && time.Since(began) < outlived && gone(Holder(path)); {
		time.Sleep(again)
		err = lock(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(err, (&Lock{f}).Release())
	}
	return &Lock{f}, nil
}

// Hold locks a file that is open already, also for reading alone, and writes nothing
// into it. Release closes it.
func Hold(f *os.File) (*Lock, error) {
	if err := lock(f); err != nil {
		return nil, err
	}
	return &Lock{f}, nil
}

// Release gives the lock back.
func (l *Lock) Release() error { return errors.Join(unlock(l.f), l.f.Close()) }

// Holder reads who has the lock at path: the number of a process, or "(unknown)".
func Holder(path string) string {
	b, err := os.ReadFile(path)
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return pid
	}
	return unknown
}

// gone reports a holder that does not live, or has not written its number yet: who
// lives does so at once.
func gone(holder string) bool { return holder == unknown || dead(holder) }

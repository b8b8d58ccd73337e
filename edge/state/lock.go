package state

import (
	"errors"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
)

// unfinishedFor is longer than any command takes to write a file of the directory.
const unfinishedFor = time.Minute

// Lock makes this process the one daemon of the directory, until release. The
// kernel gives the lock back when the process dies; what it left unfinished goes
// with the next one.
func (d *Dir) Lock() (release func(), err error) {
	l, err := lockfile.Take(d.file("lock"))
	if err == nil {
		if err = durable.Sweep(d.path, unfinishedFor); err != nil {
			_ = l.Release() // the sweep's error says it
		}
	}
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"another bivouac-edge runs on %s (process %s): see `%s`", d.path, lockfile.Holder(d.file("lock")), d.Command("status"))
	case durable.IsFull(err):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w", d.path, durable.Full(d.path, err))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w; make it yours with `chown` and `chmod 700`, or name another with --state", d.path, err)
	}
	return func() { _ = l.Release() }, nil // the process ends with it at the latest
}

// Holder is the process that has the directory, when one has, and the system can show
// which one.
func (d *Dir) Holder() (pid int, ok bool) { return lockfile.Process(d.file("lock")) }

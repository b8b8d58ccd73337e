package keyring

import (
	"errors"
	"path/filepath"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
)

// unfinishedFor is longer than any command takes to write a file of the directory.
const unfinishedFor = time.Minute

// lock makes this process the only broker on the directory, and removes what one that
// died left unfinished there.
func lock(dir string) (*lockfile.Lock, error) {
	path := filepath.Join(dir, lockName)
	l, err := lockfile.Take(path)
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"another bivouac-broker runs on %s (process %s): stop it first, or give this one its own --data", dir, lockfile.Holder(path))
	case durable.IsFull(err):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the broker's directory %s cannot be written: %w", dir, durable.Full(dir, err))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the broker's directory %s cannot be written: %w; make it yours with `chown` and `chmod 700`, or name another with --data", dir, err)
	}
	if err := durable.Sweep(dir, unfinishedFor); err != nil {
		return nil, errors.Join(protocol.Errorf(protocol.CodeFailedPrecondition, "what a broker that ended left in %s cannot be removed: %w; make the directory yours", dir, err), l.Release())
	}
	return l, nil
}

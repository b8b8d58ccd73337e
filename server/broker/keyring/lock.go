package keyring

import (
	"errors"
	"path/filepath"

	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
)

// lock makes this process the only broker on the directory.
func lock(dir string) (*lockfile.Lock, error) {
	path := filepath.Join(dir, lockName)
	l, err := lockfile.Take(path)
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"another bivouac-broker runs on %s (process %s): stop it first, or give this one its own --data", dir, lockfile.Holder(path))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be locked: %w", path, err)
	}
	return l, nil
}

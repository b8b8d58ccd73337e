//go:build unix

package keyring

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

// lock makes this process the only broker on the directory.
func lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be opened: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "another bivouac-broker runs on %s: stop it first, or give this one its own --data", dir)
	}
	return f, nil
}

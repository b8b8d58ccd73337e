package state

import (
	"os"

	"bivouac/edge/protocol"
)

// Lock makes this process the one daemon of the directory, until release. The
// kernel gives the lock back when the process dies.
func (d *Dir) Lock() (release func(), err error) {
	f, err := os.OpenFile(d.file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w; make it yours with `chown` and `chmod 700`, or name another with --state", d.path, err)
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"another bivouac-edge runs on %s: see `%s`", d.path, d.Command("status"))
	}
	return func() {
		// A child that is between fork and exec shares the open file: closing alone
		// would leave the lock to it.
		_ = unlockFile(f)
		f.Close()
	}, nil
}

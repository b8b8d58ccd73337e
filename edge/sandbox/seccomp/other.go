//go:build !linux

package seccomp

import (
	"runtime"

	"bivouac/edge/protocol"
)

// LockWorker fails: a worker runs in a sandbox on Linux only.
func LockWorker() error {
	return protocol.Errorf(protocol.CodeIncompatible,
		"a worker cannot be locked on %s; sandboxes need Linux", runtime.GOOS)
}

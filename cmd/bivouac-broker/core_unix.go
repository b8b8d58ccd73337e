//go:build linux || darwin

package main

import (
	"syscall"

	"bivouac/edge/protocol"
)

// noCore keeps the system from writing the memory of this process, with the keyring in
// it, and of those that it starts, to a file when it falls. INV-17.
func noCore() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "core files cannot be turned off, and one would hold every secret: start it after ulimit -c 0: %w", err)
	}
	return nil
}

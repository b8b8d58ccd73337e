//go:build !linux

package sized

import (
	"context"
	"runtime"

	"bivouac/edge/protocol"
)

// Volume does not exist here.
type Volume struct{}

// Mount refuses.
func Mount(context.Context, string, string, int64) (*Volume, error) {
	return nil, protocol.Errorf(protocol.CodeIncompatible, "sized file systems need Linux and this is %s", runtime.GOOS)
}

// Full reports nothing.
func (*Volume) Full() bool { return false }

// Close has nothing to do.
func (*Volume) Close() error { return nil }

// Release has nothing to do.
func Release(string) error { return nil }

// Free is not known here.
func Free(string) (int64, error) {
	return 0, protocol.Errorf(protocol.CodeIncompatible, "the free space of a disk is read on Linux only")
}

package bubblewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox/sized"

	"golang.org/x/sys/unix"
)

// seeSized mounts a small volume and fills it, in a mount namespace of its own that
// ends with it. What cannot be mounted is watched.
func (b *Backend) seeSized(ctx context.Context) bool {
	if b.keepsUID {
		return false
	}
	s, err := newSpawner(privateMounts)
	if err != nil {
		return false
	}
	defer s.stop()
	s.do(func() { err = tryVolume(ctx) })
	if err != nil {
		b.cfg.Log.Info("workspaces are watched, since no file system of a fixed size can be mounted", "error", err)
	}
	return err == nil
}

// privateMounts gives the calling thread a mount namespace from which nothing shows
// on the host.
func privateMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

func tryVolume(ctx context.Context) (err error) {
	scratch, err := os.MkdirTemp("", "bivouac-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	dir := filepath.Join(scratch, "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	const size = 4 << 20
	v, err := sized.Mount(ctx, scratch, dir, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	more, err := os.Create(filepath.Join(dir, "more"))
	if err != nil {
		return err
	}
	defer more.Close()
	block, took := bytes.Repeat([]byte("x"), 64<<10), 0 // small: a daemon keeps what it has once used
	for err == nil && took < 4*size {
		var n int
		n, err = more.Write(block)
		took += n
	}
	if !errors.Is(err, unix.ENOSPC) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "a volume of %d bytes took %d: %v", size, took, err)
	}
	return nil
}

package supervise

import (
	"context"
	"errors"
	"os"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/sized"
	"bivouac/edge/workspace"
)

// Bounds of the disk that an attempt leaves to the host.
const (
	// hostReserve stays free on the host's disk whatever an attempt may use.
	hostReserve = 256 << 20
	// leastRoom is what an attempt needs to be of use.
	leastRoom = 32 << 20
)

// makeRoom makes the folders of the attempt anew: what sandboxed code may write in a
// file system of a fixed size, where this machine can mount one, and the runner's own
// git directory beside it, so that code which fills the one cannot keep the runner
// from reading what it made. The doors are beside them.
func (a *attempt) makeRoom(ctx context.Context) error {
	if err := a.clearRoom(); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(a.cfg.workDir(), 0o700), os.Mkdir(a.cfg.filesDir(), 0o700)); err != nil {
		return err
	}
	if a.report.Disk == sandbox.DiskSized {
		if err := a.mountRoom(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir(a.cfg.workspaceDir(), 0o700), a.makeHome()); err != nil {
		return err
	}
	return a.openDoors()
}

// mountRoom mounts the volume: as large as allowed, and no larger than what the
// host can spare. A machine that could mount one when it was looked at, and cannot
// now, watches instead.
func (a *attempt) mountRoom(ctx context.Context) error {
	size := a.limits.attempt.DiskBytes
	if free, err := sized.Free(a.cfg.workDir()); err == nil {
		size = min(size, free-hostReserve)
		if size < leastRoom {
			return protocol.Errorf(protocol.CodeFailedPrecondition,
				"the disk of this machine has %d MiB left, which is too little for the turn: make room below %s", free>>20, a.cfg.Dir)
		}
	}
	volume, err := sized.Mount(ctx, a.cfg.workDir(), a.cfg.filesDir(), size)
	if protocol.CodeOf(err) == protocol.CodeFailedPrecondition {
		a.cfg.Log.Warn("the workspace is watched: its file system cannot be mounted now", "error", err)
		return nil
	}
	a.volume = volume
	a.limits.attempt.DiskBytes = size
	return err
}

// clearRoom removes what an attempt worked in, also what one that died left mounted.
func (s *supervisor) clearRoom() error {
	return errors.Join(sized.Release(s.cfg.filesDir()), workspace.Remove(s.cfg.workDir()))
}

// spent reports that a command which failed had no disk left.
func (a *attempt) spent(exit sandbox.Exit) bool {
	return exit.DiskLimit || a.volume != nil && exit.Code != 0 && a.volume.Full()
}

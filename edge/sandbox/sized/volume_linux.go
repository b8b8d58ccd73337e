package sized

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

// Volume is one mounted file system.
type Volume struct{ dir string }

// overhead is what the file system needs for itself beside the size that was asked
// for: inodes, bitmaps, group descriptors.
func overhead(bytes int64) int64 { return bytes/16 + 4<<20 }

// minBytes is the least that mkfs takes for a file system of use.
const minBytes = 1 << 20

// Mount makes a volume that holds bytes and mounts it on dir, which is empty. scratch
// is a folder on the disk that the volume takes its space from.
func Mount(ctx context.Context, scratch, dir string, bytes int64) (*Volume, error) {
	if bytes < minBytes {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a file system of %d bytes is too small", bytes)
	}
	file, err := os.CreateTemp(scratch, "volume-")
	if err != nil {
		return nil, fmt.Errorf("make a volume: %w", err)
	}
	defer file.Close()
	defer os.Remove(file.Name()) // the loop device keeps it
	if err := file.Truncate(bytes + overhead(bytes)); err != nil {
		return nil, fmt.Errorf("make a volume of %d bytes: %w", bytes, err)
	}
	if err := format(ctx, file.Name()); err != nil {
		return nil, err
	}
	loop, err := attach(file)
	if err != nil {
		return nil, err
	}
	defer loop.Close() // it ends with the mount
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "discard,noinit_itable"); err != nil {
		return nil, unable("mount a volume on %s: %w", dir, err)
	}
	v := &Volume{dir: dir}
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil {
		return nil, errors.Join(fmt.Errorf("empty a new volume: %w", err), v.Close())
	}
	return v, nil
}

// features are ext4's, whatever the machine's mke2fs.conf says: group descriptors
// with checksums, so that nothing but a few blocks is written for an empty one. There
// is no journal: nothing of a volume outlives the machine. Inodes of 256 bytes tell
// times to the nanosecond, by which changes of files are found.
const features = "none,extent,flex_bg,uninit_bg,sparse_super,dir_index,filetype,large_file,huge_file,64bit"

// format writes an empty ext4.
func format(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, mkfs(), "-q", "-F", "-m", "0", "-i", "8192", "-I", "256", "-O", features,
		"-E", "lazy_itable_init=1,nodiscard,packed_meta_blocks=1", file)
	cmd.Env = []string{"MKE2FS_CONFIG=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return unable("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// mkfs is often outside of a service's PATH.
func mkfs() string {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin"} {
		if name := filepath.Join(dir, "mkfs.ext4"); unix.Access(name, unix.X_OK) == nil {
			return name
		}
	}
	return "mkfs.ext4"
}

// attach gives the file a loop device that ends with its last user.
func attach(file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, unable("no loop device: %w", err)
	}
	defer control.Close()
	for range 16 { // others take free ones, too
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, unable("no loop device is free: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, unable("no loop device: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, unable("set up a loop device: %w", err)
		}
	}
	return nil, unable("no loop device stays free")
}

func unable(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeFailedPrecondition, "no sized file system can be made here: "+format, args...)
}

// A volume is full when one part in so many, and a few blocks, are left: programs
// write in pieces, and the file system keeps some for itself.
const (
	fullShare  = 100
	fullBlocks = 64
)

// Full reports that next to nothing, bytes or inodes, is left.
func (v *Volume) Full() bool {
	var st unix.Statfs_t
	if err := unix.Statfs(v.dir, &st); err != nil {
		return false
	}
	return st.Bavail <= st.Blocks/fullShare+fullBlocks || st.Files > 0 && st.Ffree == 0
}

// Close takes the volume away with all that is in it.
func (v *Volume) Close() error { return Release(v.dir) }

// Release takes away what is mounted on a folder, if anything is: also what a
// process that died had mounted.
func Release(dir string) error {
	mounted, err := mountPoint(dir)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("take the volume on %s away: %w", dir, err)
	}
	return nil
}

// mountPoint reports whether dir is on another device than the folder above.
func mountPoint(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(dir, &here); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		return false, &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(dir), &above); err != nil {
		return false, &os.PathError{Op: "lstat", Path: filepath.Dir(dir), Err: err}
	}
	return here.Dev != above.Dev, nil
}

// Free is what a user may still write on the disk of a folder.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

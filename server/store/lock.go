package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

// lockDirectory takes <dir>/lock for this process. WAL would admit a second
// process, and two servers on one directory would each believe to be alone.
func lockDirectory(dir string) (release func() error, err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, directoryProblem(dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		held := holder(f)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
				"data directory %s is in use by process %s: stop that server, or give this one another directory with --data", dir, held)
		}
		return nil, fmt.Errorf("store: lock %s: %w", path, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("store: lock %s: %w", path, err)
	}
	return func() error {
		// A child between fork and exec shares the open file: closing alone would leave
		// the lock to it.
		return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
	}, nil
}

// holder reads who has the lock.
func holder(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return pid
	}
	return "(unknown)"
}

// directoryProblem says what is wrong with a data directory and what mends it.
func directoryProblem(dir string, err error) error {
	coded := func(format string, args ...any) error {
		return &protocol.Error{Code: protocol.CodeFailedPrecondition, Message: fmt.Sprintf(format, args...), Err: err}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return coded("data directory %s does not exist: make it with `mkdir -m 0700 -p %s`", dir, dir)
	case errors.Is(err, unix.EROFS):
		return coded("data directory %s is on a read-only file system: remount it writable, or name another with --data", dir)
	case errors.Is(err, unix.ENOTDIR):
		return coded("data directory %s is not a directory: name another with --data", dir)
	case errors.Is(err, unix.ENOSPC):
		return coded("data directory %s is on a full file system: free space there, or name another with --data", dir)
	}
	return coded("data directory %s cannot be written (%v): give it to this user with `chown` and `chmod 0700`, or name another with --data", dir, err)
}

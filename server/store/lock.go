package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/edge/durable"
	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
)

// unfinishedFor is longer than any command takes between two writes of a file of the
// directory: a backup that is written there meanwhile is touched all the time.
const unfinishedFor = time.Minute

// LockDirectory takes <dir>/lock for this process. WAL would admit a second
// process, and two servers on one directory would each believe to be alone, or to
// be the same one. A store locks its file's; a server locks its own when the
// database is elsewhere. What a server that died in a write left unfinished there,
// which may be a key, goes with the next one.
func LockDirectory(dir string) (release func() error, err error) {
	path := filepath.Join(dir, "lock")
	l, err := lockfile.Take(path)
	switch {
	case errors.Is(err, lockfile.ErrHeld):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"data directory %s is in use by process %s: stop that server, or give this one another directory with --data", dir, lockfile.Holder(path))
	case err != nil:
		return nil, directoryProblem(dir, err)
	}
	if err := durable.Sweep(dir, unfinishedFor); err != nil {
		return nil, errors.Join(directoryProblem(dir, err), l.Release())
	}
	return l.Release, nil
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

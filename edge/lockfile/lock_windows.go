package lockfile

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// beyond is where the locked byte lies: a locked one could not be read, and the
// file's own bytes are for people.
func beyond() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: math.MaxInt32} }

func lock(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, beyond())
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return err
}

func unlock(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, beyond())
}

// dead is always false: no child shares a lock before it is a program of its own.
func dead(string) bool { return false }

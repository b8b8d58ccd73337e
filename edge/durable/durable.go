// Package durable puts small files on the disk whole, and says where a program
// of Bivouac keeps what must outlast it.
//
// It guarantees that whoever reads a path finds the old content or the new one,
// never a part, also after a crash in between; that the new one is on the disk,
// name and all, when a function returns nil; and that a failed write leaves the
// old content and nothing beside it. What a process that died in a write left beside
// it is for Sweep. The mode of a file is the one that was asked
// for before its content can be seen under its name. It refuses to make folders
// and to know what is written. Files that are appended to keep their own writers.
// It imports the standard library alone. Test it with go test alone.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Replace makes content durable under path, or leaves what was there.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return Write(path, mode, bytesOf(content))
}

// Write is Replace for content that is made while it is written. What fill refuses
// is returned as it is.
func Write(path string, mode fs.FileMode, fill func(io.Writer) error) error {
	return place(path, mode, fill, os.Rename)
}

// Create is Write for a file that must be new: it never takes the place of
// another one, and returns fs.ErrExist instead.
func Create(path string, mode fs.FileMode, fill func(io.Writer) error) error {
	return place(path, mode, fill, func(temp, path string) error {
		if err := os.Link(temp, path); err != nil {
			return err
		}
		return os.Remove(temp)
	})
}

// Swap is Replace without the wait for the disk: the file is whole when the process
// dies, and may be an older one after a power cut.
func Swap(path string, content []byte, mode fs.FileMode) error {
	temp, err := stage(path, mode, bytesOf(content), func(*os.File) error { return nil })
	if err != nil {
		return err
	}
	return settle(temp, path, os.Rename)
}

func place(path string, mode fs.FileMode, fill func(io.Writer) error, move func(temp, path string) error) error {
	temp, err := stage(path, mode, fill, (*os.File).Sync)
	if err != nil {
		return err
	}
	if err := settle(temp, path, move); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// stage writes a file beside its place.
func stage(path string, mode fs.FileMode, fill func(io.Writer) error, sync func(*os.File) error) (temp string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), unfinished+"*") // 0600 until it is whole
	if err != nil {
		return "", err
	}
	if err = fill(f); err == nil {
		err = errors.Join(f.Chmod(mode), sync(f))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name()) // the first error says it
		return "", err
	}
	return f.Name(), nil
}

func settle(temp, path string, move func(temp, path string) error) error {
	err := move(temp, path)
	if err != nil {
		os.Remove(temp) // the first error says it
	}
	return err
}

func bytesOf(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// unfinished begins the name of a file that is not in its place yet.
const unfinished = ".new-"

// Sweep removes the files in a folder that a process which died in a write left
// there: nobody reads them, and they may hold secrets. One that was written within
// age may be under way.
func Sweep(dir string, age time.Duration) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), unfinished) || !e.Type().IsRegular() {
			continue
		}
		at, err := e.Info()
		if err == nil && time.Since(at.ModTime()) >= age {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		if !errors.Is(err, fs.ErrNotExist) { // it came to its place meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// SyncDir makes the names in a folder last. Windows journals them itself, and
// refuses to sync a folder.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// StateDir is where the named program keeps its state when nobody says otherwise:
// in XDG_STATE_HOME, or .local/state of the user's home. Where there is no home it
// is the folder otherwise, in the working directory.
func StateDir(name, otherwise string) string {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, filepath.FromSlash(name))
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", filepath.FromSlash(name))
	}
	return otherwise
}

// IsFull reports an error of a disk that is full, or of a quota on it.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Full adds to the error of a full disk what mends it; any other stays as it is.
func Full(path string, err error) error {
	if !IsFull(err) {
		return err
	}
	return fmt.Errorf("%w: the disk is full; make room on it, which `df -h %s` shows", err, path)
}

//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readFile reads the first path that can be read, also through the roots of all
// processes it sees.
func readFile(paths []string) (string, error) {
	var errs []error
	for _, p := range paths {
		for _, q := range []string{p, "/proc/1/root" + p, "/proc/self/root" + p, "/proc/self/cwd/../../.." + p} {
			text, err := os.ReadFile(q)
			if err == nil {
				return q + " " + string(text), nil
			}
			errs = append(errs, err)
		}
	}
	return "", errors.Join(errs...)
}

// writeFile changes, makes, replaces or removes each path.
func writeFile(paths []string) (string, error) {
	var errs []error
	for _, p := range paths {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
		if err == nil {
			_, err = f.WriteString("attacked\n")
			f.Close()
		}
		if err == nil {
			return "wrote " + p, nil
		}
		errs = append(errs, err)
		if st, err := os.Lstat(p); err == nil && st.Mode()&fs.ModeSymlink != 0 {
			continue // the link itself may be ours; what it points to is the prize
		}
		if err := os.Rename(p, p+".moved"); err == nil {
			return "moved " + p, nil
		}
		if err := os.Remove(p); err == nil {
			return "removed " + p, nil
		}
		if err := os.Chmod(p, 0o777); err == nil {
			return "opened " + p, nil
		}
	}
	return "", errors.Join(errs...)
}

// swapParent puts another file at a protected path by renaming the folder above.
func swapParent(paths []string) (string, error) {
	p := paths[0]
	parent := filepath.Dir(p)
	if err := os.Rename(parent, parent+".moved"); err != nil {
		return "", err
	}
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", err
	}
	return writeFile([]string{p})
}

// listTree finds any file but those named, from the root.
func listTree(known []string) (string, error) {
	var found []string
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !slices.Contains(known, path) {
			found = append(found, path)
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = errors.New("no other file")
	}
	return strings.Join(found, " "), err
}

// environment finds a variable that was not given. PWD is bwrap's.
func environment(known []string) (string, error) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name != "PWD" && !slices.Contains(known, name) {
			return kv, nil
		}
	}
	return "", errors.New("no other variable")
}

// descriptors finds an open descriptor beyond the number given. The runtime's
// own are told apart by what they are.
func descriptors(args []string) (string, error) {
	var known int
	fmt.Sscan(args[0], &known)
	for fd := known; fd < 4096; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC != 0 {
			continue // opened by this program after it started
		}
		return fmt.Sprintf("descriptor %d, mode %o", fd, st.Mode), nil
	}
	return "", errors.New("no other descriptor")
}

// harmless are the devices that every program may expect.
var harmless = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"}

func devices([]string) (string, error) {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeDevice != 0 && !slices.Contains(harmless, e.Name()) {
			return "/dev/" + e.Name(), nil
		}
	}
	return "", errors.New("no other device")
}

//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"bivouac/edge/sandbox/seccomp"

	"golang.org/x/sys/unix"
)

var afterwards = []string{"attacker", "print", "REACHED", "executed"}

// executeAnything executes a shell, a program that it writes, and one that has no
// name. A success does not return.
func executeAnything([]string) (string, error) {
	var errs []error
	for _, sh := range []string{"/bin/sh", "/usr/bin/sh", "/bin/busybox", "/usr/bin/env"} {
		errs = append(errs, unix.Exec(sh, []string{"sh", "-c", "echo REACHED a shell"}, nil))
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"/tmp", "/", "/dev/shm", "/var/tmp", "/run", "."} {
		p := filepath.Join(dir, "written")
		if err := os.WriteFile(p, self, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, unix.Exec(p, afterwards, nil))
	}
	errs = append(errs, executeNameless(self))
	return "", errors.Join(errs...)
}

func executeNameless(program []byte) error {
	fd, err := unix.MemfdCreate("program", 0)
	if err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	if _, err := unix.Write(fd, program); err != nil {
		return err
	}
	argv, err := pointers(afterwards)
	if err != nil {
		return err
	}
	empty, env := []byte{0}, []uintptr{0}
	_, _, e := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return errors.Join(e, unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), afterwards, nil))
}

func pointers(args []string) ([]*byte, error) {
	var all []*byte
	for _, a := range args {
		p, err := unix.BytePtrFromString(a)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return append(all, nil), nil
}

// executeSelf executes the one program there is. Before the lock that works, and
// gains nothing.
func executeSelf([]string) (string, error) {
	return "", unix.Exec(os.Args[0], afterwards, nil)
}

// makeProcess makes a process that executes nothing.
func makeProcess([]string) (string, error) {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return "", e
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return "a process", nil
}

func executeLocked([]string) (string, error) {
	if err := seccomp.LockWorker(); err != nil {
		return "lock failed: " + err.Error(), nil
	}
	return executeSelf(nil)
}

func forkLocked([]string) (string, error) {
	if err := seccomp.LockWorker(); err != nil {
		return "lock failed: " + err.Error(), nil
	}
	return makeProcess(nil)
}

//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// targets are the process ids in args, as the host numbers them, and every
// other one that can be seen.
func targets(args []string) []int {
	var pids []int
	for _, a := range args {
		if pid, err := strconv.Atoi(a); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// each tries f on every target until one is reached.
func each(args []string, f func(pid int) (string, error)) (string, error) {
	var errs []error
	for _, pid := range targets(args) {
		got, err := f(pid)
		if err == nil {
			return fmt.Sprintf("process %d: %s", pid, got), nil
		}
		errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
	}
	return "", errors.Join(errs...)
}

// procfs goes into another process through its /proc folder.
func procfs(args []string) (string, error) {
	return each(args, func(pid int) (string, error) {
		dir := fmt.Sprintf("/proc/%d/", pid)
		if env, err := os.ReadFile(dir + "environ"); err == nil {
			return "environment " + strings.ReplaceAll(string(env), "\x00", " "), nil
		}
		if _, err := os.ReadDir(dir + "root/"); err == nil {
			return "its root", nil
		}
		if f, err := os.Open(dir + "mem"); err == nil {
			f.Close()
			return "its memory", nil
		}
		fds, err := os.ReadDir(dir + "fd")
		for _, e := range fds {
			if target, lerr := os.Readlink(dir + "fd/" + e.Name()); lerr == nil {
				return "its descriptor " + target, nil
			}
		}
		return "", errors.Join(err, errors.New("nothing readable"))
	})
}

func ptrace(args []string) (string, error) {
	runtime.LockOSThread()
	return each(args, func(pid int) (string, error) {
		if err := unix.PtraceSeize(pid); err != nil {
			return "", err
		}
		return "seized", nil
	})
}

// vmRead reads the first bytes of the victim's program image; any address that
// answers will do, and EFAULT means that access was granted.
func vmRead(args []string) (string, error) {
	return each(args, func(pid int) (string, error) {
		buf := make([]byte, 16)
		local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
		remote := []unix.RemoteIovec{{Base: 0x400000, Len: len(buf)}}
		_, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if err == nil || errors.Is(err, unix.EFAULT) {
			return fmt.Sprintf("memory %x", buf), nil
		}
		return "", err
	})
}

func stealDescriptor(args []string) (string, error) {
	return each(args, func(pid int) (string, error) {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return "", err
		}
		for fd := range 4 {
			if _, err = unix.PidfdGetfd(pidfd, fd, 0); err == nil {
				return fmt.Sprintf("its descriptor %d", fd), nil
			}
		}
		return "", err
	})
}

func signal(args []string) (string, error) {
	return each(args, func(pid int) (string, error) { return "signalled", unix.Kill(pid, 0) })
}

// setuid runs a program that belongs to root and has the set-user-id bit.
func setuid(args []string) (string, error) {
	out, err := exec.Command(args[0], "print", "euid").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if strings.TrimSpace(string(out)) != "0" {
		return "", fmt.Errorf("effective uid %s", strings.TrimSpace(string(out)))
	}
	return "effective uid 0", nil
}

func userNamespace([]string) (string, error) {
	runtime.LockOSThread()
	// The kernel refuses a new user namespace to a process with threads, so a
	// child is made with it; that is clone(2), which the other way also tries.
	if err := unix.Unshare(unix.CLONE_NEWUTS); err == nil {
		return "a host name of its own", nil
	}
	cmd := exec.Command("/usr/bin/unshare", "--user", "/usr/bin/true")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return "a user namespace", nil
}

// cloneNamespace asks clone(2) for a user namespace.
func cloneNamespace([]string) (string, error) {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return "", e
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	var ws unix.WaitStatus
	_, err := unix.Wait4(int(pid), &ws, 0, nil)
	return "a user namespace", err
}

func mountTmpfs([]string) (string, error) {
	return "mounted", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")
}

func changeRoot([]string) (string, error) { return "changed", unix.Chroot("/tmp") }

// clone3 with no arguments is refused by the kernel as invalid, and must not
// even be known inside, or libraries use it with flags no filter can read.
func clone3([]string) (string, error) {
	_, _, e := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	if e == unix.ENOSYS {
		return "", e
	}
	return "the kernel answered: " + e.Error(), nil
}

//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// bad is a pointer that the kernel cannot read, so a call that gets to the
// kernel's own code fails in its own way and not as a filter does.
const bad = 1

// call is one that must not reach the kernel. Arguments are wrong on purpose.
type call struct {
	name string
	nr   uintptr
	args [6]uintptr
}

var forbidden = []call{
	{"bpf", unix.SYS_BPF, [6]uintptr{0, bad, 1 << 20}},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{1, bad}},
	{"io_uring_enter", unix.SYS_IO_URING_ENTER, [6]uintptr{^uintptr(0)}},
	{"io_uring_register", unix.SYS_IO_URING_REGISTER, [6]uintptr{^uintptr(0)}},
	{"keyctl", unix.SYS_KEYCTL, [6]uintptr{1 << 20}},
	{"add_key", unix.SYS_ADD_KEY, [6]uintptr{bad, bad}},
	{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{bad, bad}},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{bad, 0, 0, 0, 0}},
	{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{1}},
	{"ptrace", unix.SYS_PTRACE, [6]uintptr{unix.PTRACE_PEEKDATA, 1 << 30}},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [6]uintptr{1 << 30, bad, 1, bad, 1}},
	{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [6]uintptr{1 << 30, bad, 1, bad, 1}},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [6]uintptr{^uintptr(0)}},
	{"kcmp", unix.SYS_KCMP, [6]uintptr{1 << 30, 1 << 30}},
	{"process_madvise", unix.SYS_PROCESS_MADVISE, [6]uintptr{^uintptr(0), bad, 1}},
	{"setns", unix.SYS_SETNS, [6]uintptr{^uintptr(0)}},
	{"unshare", unix.SYS_UNSHARE, [6]uintptr{1}},
	{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [6]uintptr{^uintptr(0), bad, bad, bad}},
	{"mknod", sysMknodAt, [6]uintptr{^uintptr(0), bad, unix.S_IFIFO}},
	{"move_pages", unix.SYS_MOVE_PAGES, [6]uintptr{1 << 30}},
	{"personality", unix.SYS_PERSONALITY, [6]uintptr{0xffffffff}},
	{"memfd_secret", sysMemfdSecret, [6]uintptr{1 << 20}},
}

const (
	sysMknodAt     = unix.SYS_MKNODAT
	sysMemfdSecret = 447
)

// calls lists the forbidden calls that got to the kernel's code.
func calls(skip []string) (string, error) {
	var got []string
	for _, c := range forbidden {
		if slices.Contains(skip, c.name) {
			continue
		}
		r, _, e := unix.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if e == 0 && c.name == "io_uring_setup" {
			unix.Close(int(r))
		}
		if e != unix.EPERM && e != unix.ENOSYS {
			got = append(got, fmt.Sprintf("%s(%v)", c.name, e))
		}
	}
	if len(got) == 0 {
		return "", fmt.Errorf("all of %d calls were denied", len(forbidden))
	}
	return strings.Join(got, " "), nil
}

// compat32 asks for its pid through the 32-bit entry of a 64-bit kernel, which
// numbers calls differently and so goes around a filter that forgot it.
func compat32([]string) (string, error) {
	if pid := getpid32(); pid > 0 {
		return fmt.Sprintf("pid %d by a 32-bit call", pid), nil
	}
	return "", errors.New("32-bit calls do not answer")
}

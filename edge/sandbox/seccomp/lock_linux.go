package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// LockWorker is called by a worker before it reads its first byte from the
// channel. From then on no thread of the process can execute anything or make
// another process; it adds to the program that sandbox A already has and cannot
// be taken back.
func LockWorker() error {
	insts, err := assemble(locked())
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(insts)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("lock the worker: forgo new privileges: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The kernel puts the filter, and no_new_privs with it, on all threads.
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("lock the worker: load its filter: %w", errno)
	}
	if r != 0 {
		return fmt.Errorf("lock the worker: thread %d has another filter", r)
	}
	return nil
}

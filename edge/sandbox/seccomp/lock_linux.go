package seccomp

import (
	"fmt"

	lib "github.com/elastic/go-seccomp-bpf"
)

// LockWorker is called by a worker before it reads its first byte from the
// channel. From then on no thread of the process can execute anything or make
// another process; it adds to the program that sandbox A already has and cannot
// be taken back.
func LockWorker() error {
	ours, err := table()
	if err != nil {
		return err
	}
	p := policy(ours, []group{{names: executions}, {names: sockets}, {names: escapes}})
	p.Syscalls = append(p.Syscalls, lib.SyscallGroup{
		Action: lib.ActionErrno | errnoPermission,
		NamesWithCondtions: []lib.NameWithConditions{
			{Name: "clone", Conditions: []lib.Condition{{Argument: 0, Operation: lib.BitsNotSet, Value: cloneThread}}},
		},
	})
	f := lib.Filter{NoNewPrivs: true, Flag: lib.FilterFlagTSync, Policy: p}
	if err := lib.LoadFilter(f); err != nil {
		return fmt.Errorf("lock the worker: %w", err)
	}
	return nil
}

// cloneThread is CLONE_THREAD: without it clone(2) makes a process.
const cloneThread = 0x00010000

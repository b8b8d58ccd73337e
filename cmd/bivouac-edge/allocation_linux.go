package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"bivouac/edge/allocation"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// superviseTask is a supervisor that Nomad starts. It waits for the daemon, takes its
// attempt once and for all, and goes on as the supervisor that the daemon would have
// started: with the same arguments, environment, log and mounts of its own. Its process
// stays the one that Nomad knows.
func superviseTask(ctx context.Context, t allocation.Task, worker string) error {
	a, taken, err := allocation.Take(ctx, t)
	if err != nil || !taken {
		return err
	}
	// A signal until here ends the task; one that comes later ends this process, or is the
	// next program's. Where none is left the daemon finds that, and says so.
	if s := signalsOf(ctx); ctx.Err() != nil || s != nil && !s.giveBack() {
		t.Log.Info("this task was stopped before it had begun, and ends", "attempt", a.ID, "job", t.Job)
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The namespace is this thread's, and so of the program that it executes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := errors.Join(ownMounts(), logTo(a)); err != nil {
		return protocol.Errorf(protocol.CodeInternal, "the supervisor of attempt %s cannot begin: %w", a.ID, err)
	}
	if err := os.Chdir(a.Path()); err != nil {
		return err
	}
	argv := append([]string{self}, superviseArguments(worker, a.Path())...)
	return os.NewSyscallError("exec", syscall.Exec(self, argv, superviseEnv()))
}

// ownMounts is a mount namespace for who may have one: what a supervisor mounts for its
// attempt ends with it, however it ends.
func ownMounts() error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); errors.Is(err, unix.EPERM) {
		return nil // in a container
	} else if err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return os.NewSyscallError("mount", unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// logTo makes the attempt's log what this process and the next program write to: it goes
// to the server over our link alone.
func logTo(a state.Attempt) error {
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for _, fd := range []int{unix.Stdout, unix.Stderr} {
		if err := unix.Dup3(int(log.Fd()), fd, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	return nil // the log closes with the program
}

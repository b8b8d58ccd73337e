//go:build linux

// Package exectrace runs a command and records the arguments and environment of
// every program that it or any descendant executes, sandboxes included. It is how
// the demo and the tests prove that no secret travels in either (INV-17).
//
// It uses ptrace, so that a process which lives for a millisecond is seen too. The
// tracer is a process of its own: Main re-executes the caller's binary, because
// waiting for a whole tree would steal the caller's other children.
package exectrace

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Record is one execution.
type Record struct {
	PID  int      `json:"pid"`
	Exe  string   `json:"exe"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
}

const flag = "-exectrace"

// Command returns a command that runs name under a tracer which appends to file.
// The calling binary must call Main first thing.
func Command(file, name string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(self, append([]string{flag, file, name}, args...)...), nil
}

// Main is the tracer: it returns at once in a process that is none.
func Main() {
	if len(os.Args) < 4 || os.Args[1] != flag {
		return
	}
	runtime.LockOSThread() // ptrace belongs to a thread
	code, err := trace(os.Args[2], os.Args[3], os.Args[4:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "exectrace: %v\n", err)
	}
	os.Exit(code)
}

const options = unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

func trace(file, name string, args []string) (int, error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1, err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	root := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(root, &ws, unix.WALL, nil); err != nil {
		return 1, err
	}
	if err := record(out, root); err != nil {
		return 1, err
	}
	if err := unix.PtraceSetOptions(root, options); err != nil {
		return 1, err
	}
	forward(root)
	if err := unix.PtraceCont(root, 0); err != nil {
		return 1, err
	}
	return follow(out, root)
}

// forward passes the signals that end a tracer on to what it traces.
func forward(pid int) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range ch {
			_ = unix.Kill(pid, s.(syscall.Signal))
		}
	}()
}

// follow resumes every stop of the tree until nothing is left. The exit code is
// the root's.
func follow(out *os.File, root int) (int, error) {
	code := 1
	seen := map[int]bool{root: true}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return code, nil
		case err != nil:
			return code, err
		}
		switch {
		case ws.Exited() || ws.Signaled():
			delete(seen, pid)
			if pid == root {
				code = ws.ExitStatus()
				if ws.Signaled() {
					code = 128 + int(ws.Signal())
				}
			}
		case ws.Stopped():
			resume(out, pid, ws, seen)
		}
	}
}

// resume lets a stopped thread go on, with the signal it stopped for unless that
// signal is the tracer's own doing. A thread that is gone by now is no error.
func resume(out *os.File, pid int, ws unix.WaitStatus, seen map[int]bool) {
	deliver := int(ws.StopSignal())
	switch {
	case ws.StopSignal() == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXEC:
		_ = record(out, pid) // gone again: it executed nothing that matters
		deliver = 0
	case ws.StopSignal() == unix.SIGTRAP && ws.TrapCause() > 0:
		deliver = 0
	case ws.StopSignal() == unix.SIGSTOP && !seen[pid]:
		deliver = 0 // every new thread begins with it
	}
	seen[pid] = true
	_ = unix.PtraceCont(pid, deliver)
}

func record(out *os.File, pid int) error {
	argv, err := words(pid, "cmdline")
	if err != nil {
		return err
	}
	env, err := words(pid, "environ")
	if err != nil {
		return err
	}
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	line, err := json.Marshal(Record{PID: pid, Exe: exe, Argv: argv, Env: env})
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}

func words(pid int, name string) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}

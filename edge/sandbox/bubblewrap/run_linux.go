package bubblewrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// run is one process and everything it starts.
type run struct {
	group   *group
	role    sandbox.Role
	limit   time.Duration // of the time in which it could run
	monitor *os.Process   // bwrap outside; its child is the namespace's first process
	status  *os.File      // bwrap reports here
	gate    *os.File      // bwrap waits here until limits are set
	streams sync.WaitGroup
	errout  *outlet
	tree    *workspace
	gone    chan struct{} // closed when the namespace is empty

	mu     sync.Mutex // guards what follows
	pidfd  int        // of the namespace's first process, -1 before and after
	reason func(*sandbox.Exit)
	broken error // a writer's failure
}

// end asks for the death of the namespace; the first reason is the one reported.
// Before bwrap has said which process to kill, it waits at the gate and nothing
// of the command has run; then launched kills.
func (r *run) end(reason func(*sandbox.Exit)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reason == nil {
		r.reason = reason
	}
	if r.pidfd >= 0 {
		_ = unix.PidfdSendSignal(r.pidfd, unix.SIGKILL, nil, 0) // ESRCH: dead already
	}
}

// report is what bwrap writes to --json-status-fd: the first document once the
// namespaces exist, the second when the command ended. Without the second the
// command never started.
type report struct {
	ChildPID int  `json:"child-pid"`
	ExitCode *int `json:"exit-code"`
}

// follow reads bwrap's reports to their end.
func (r *run) follow() (code *int, err error) {
	defer r.status.Close()
	d := json.NewDecoder(r.status)
	for {
		var doc report
		if derr := d.Decode(&doc); derr != nil {
			if errors.Is(derr, io.EOF) || errors.Is(derr, io.ErrUnexpectedEOF) {
				return code, err // bwrap is gone
			}
			return code, errors.Join(err, fmt.Errorf("read bwrap's status: %w", derr), r.abandon())
		}
		if doc.ChildPID != 0 {
			err = r.launched(doc.ChildPID)
		}
		if doc.ExitCode != nil {
			code = doc.ExitCode
		}
	}
}

// launched limits the first process of the namespace and opens the gate. A
// process that cannot be limited is killed behind it.
func (r *run) launched(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || err == nil && !childOf(pid, r.monitor.Pid) {
		if err == nil {
			unix.Close(fd)
		}
		return nil // bwrap failed at once and says why
	}
	if err != nil {
		return errors.Join(fmt.Errorf("hold the sandbox's first process: %w", err), r.abandon())
	}
	r.mu.Lock()
	r.pidfd = fd
	ended := r.reason != nil
	r.mu.Unlock()
	r.group.spawner.do(func() { err = r.bound(pid) }) // its thread has the right to
	if err != nil || ended {
		r.end(func(*sandbox.Exit) {})
	} else if _, werr := r.gate.Write([]byte{0}); werr != nil && !errors.Is(werr, unix.EPIPE) {
		err = fmt.Errorf("open the sandbox's gate: %w", werr)
		r.end(func(*sandbox.Exit) {})
	}
	return err
}

// abandon kills bwrap where its child cannot be held; the child is at the gate,
// which stays closed.
func (r *run) abandon() error {
	r.end(func(*sandbox.Exit) {})
	if err := r.monitor.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// childOf guards against a number that was used again after bwrap told it.
func childOf(pid, parent int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(text), ") ")
	var state string
	var ppid int
	if _, serr := fmt.Sscan(rest, &state, &ppid); err != nil || !ok || serr != nil {
		return false
	}
	return ppid == parent
}

// wait follows the process to its end and says how it ended.
func (r *run) wait(ctx context.Context) (sandbox.Exit, error) {
	defer r.group.forget(r)
	defer close(r.gone)
	over := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() { r.watch(ctx, over) })
	if r.tree != nil {
		watchers.Go(func() { r.watchDisk(over) })
	}
	code, err := r.follow()
	state, werr := r.monitor.Wait()
	r.drain()
	close(over)
	watchers.Wait()
	r.streams.Wait()
	r.gate.Close()
	if r.tree != nil {
		r.tree.close()
	}
	if err = errors.Join(err, werr); err != nil {
		return sandbox.Exit{}, err
	}
	return r.exit(ctx, code, state)
}

// watch ends the run at its deadline or when ctx ends.
func (r *run) watch(ctx context.Context, over <-chan struct{}) {
	late := make(chan struct{})
	var clock sync.WaitGroup
	clock.Go(func() {
		if r.group.still.Elapse(r.limit, over) {
			close(late)
		}
	})
	defer clock.Wait()
	select {
	case <-over:
	case <-late:
		r.end(func(e *sandbox.Exit) { e.Timeout = true })
	case <-ctx.Done():
		why, _ := cancelled(ctx)
		r.end(func(e *sandbox.Exit) { e.Timeout, e.Killed = why.Timeout, why.Killed })
	}
}

// drain waits until the namespace's first process is gone. The kernel ends it
// only after it has reaped everything else in the namespace.
func (r *run) drain() {
	r.mu.Lock()
	fd := r.pidfd
	r.mu.Unlock()
	if fd < 0 {
		return
	}
	// bwrap's death signal has reached it already; once more costs nothing.
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r.mu.Lock()
	r.pidfd = -1
	r.mu.Unlock()
	unix.Close(fd)
}

// killedCode is what bwrap reports when the namespace was killed.
const killedCode = 128 + int(unix.SIGKILL)

// exit turns the end of bwrap into an Exit.
func (r *run) exit(ctx context.Context, code *int, state *os.ProcessState) (sandbox.Exit, error) {
	e := sandbox.Exit{Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Code = 128 + int(ws.Signal())
	}
	if code != nil {
		e.Code = *code
	}
	if e.Code > 128 && e.Code <= 128+64 {
		e.Signal = unix.SignalName(syscall.Signal(e.Code - 128)) // as bwrap and shells tell it
	}
	hit := r.group.blame()
	r.mu.Lock()
	reason, broken := r.reason, r.broken
	r.mu.Unlock()
	switch {
	case reason != nil && (code == nil || *code == killedCode):
		reason(&e)
	case reason != nil:
		// It ended by itself before it could be killed; but lost output stays lost.
		var why sandbox.Exit
		reason(&why)
		e.OutputLimit = why.OutputLimit
	case e.Signal == "SIGXFSZ":
		e.DiskLimit = true // one file alone
	case e.Code != 0 && hit.OutOfMemory > 0:
		e.OutOfMemory = true
	case e.Code != 0 && hit.PIDsRefused > 0:
		e.TooManyPIDs = true
	case code == nil:
		return e, r.neverStarted()
	}
	if broken != nil {
		return e, fmt.Errorf("deliver the sandbox's output: %w", broken)
	}
	if e.Killed && ctx.Err() != nil {
		return e, context.Cause(ctx)
	}
	return e, nil
}

// neverStarted explains an end of bwrap before the command ran.
func (r *run) neverStarted() error {
	said := strings.TrimSpace(string(r.errout.head))
	if rest, ok := strings.CutPrefix(said, "bwrap: execvp "); ok {
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"the command cannot be executed inside the sandbox: %s; bind its folder or name another", rest)
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox could not be made: %s; %s", said, remedyFor(said))
}

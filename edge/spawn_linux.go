package edge

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"bivouac/edge/durable"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// Processes is a Spawner of real processes: `<command> <arguments> <attempt
// directory>`, each in a session of its own, so that it outlives the daemon and
// a signal to the daemon's terminal does not reach it.
type Processes struct {
	// Command and its arguments before the directory.
	Command []string
	// Env is the whole environment of a supervisor. It must hold no secret.
	Env []string
	// Connect makes a client of the socket in a directory.
	Connect func(dir string) *http.Client

	mu       sync.Mutex                 // guards the fields below
	children map[protocol.AttemptID]int // started by this process, not yet reaped
	clients  map[protocol.AttemptID]*http.Client
}

// Start runs a supervisor. What it writes goes to supervise.log beside its
// socket. Beside one that another scheduler started and that lives, none is started.
func (p *Processes) Start(_ context.Context, a state.Attempt) error {
	if err := a.Unseen(); err != nil {
		return err
	}
	if pid := takerOf(a); pid != 0 {
		return protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s runs as process %d", a.ID, pid)
	}
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	start := func(unshare uintptr) (*exec.Cmd, error) {
		cmd := exec.Command(p.Command[0], append(p.Command[1:len(p.Command):len(p.Command)], a.Path())...)
		cmd.Dir, cmd.Env = a.Path(), p.Env
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: unshare}
		return cmd, cmd.Start()
	}
	// What a supervisor mounts for its attempt ends with it, however it ends.
	cmd, err := start(privateMounts())
	if errors.Is(err, unix.EPERM) {
		cmd, err = start(0)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s cannot be started: %w", a.ID, err)
	}
	pid := cmd.Process.Pid
	p.mu.Lock()
	if p.children == nil {
		p.children = map[protocol.AttemptID]int{}
	}
	p.children[a.ID] = pid
	p.mu.Unlock()
	return durable.Replace(filepath.Join(a.Path(), "pid"), strconv.AppendInt(nil, int64(pid), 10), 0o600)
}

// privateMounts is a mount namespace for who may have one.
func privateMounts() uintptr {
	if os.Geteuid() == 0 {
		return unix.CLONE_NEWNS
	}
	return 0
}

// Client of the supervisor's socket, one a directory.
func (p *Processes) Client(a state.Attempt) connect.HTTPClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[a.ID]; c != nil {
		return c
	}
	c := p.Connect(a.Path())
	if p.clients == nil {
		p.clients = map[protocol.AttemptID]*http.Client{}
	}
	p.clients[a.ID] = c
	return c
}

// Kill ends the process of a directory, if one runs. Its sandboxes die with it:
// they were started to follow their parent. One that lives where it is not seen is said.
func (p *Processes) Kill(ctx context.Context, a state.Attempt) error {
	if err := a.Unseen(); err != nil {
		return err
	}
	for {
		pid := p.running(a)
		if pid == 0 {
			break
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if p.Reap(); p.running(a) == 0 {
			break
		}
		if !op.Sleep(ctx, 10*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[a.ID]; c != nil {
		c.CloseIdleConnections()
		delete(p.clients, a.ID)
	}
	return nil
}

// pidOf the living supervisor of a directory; zero when there is none: who took it, or
// whom this machine started.
func pidOf(a state.Attempt) int {
	if pid := takerOf(a); pid != 0 {
		return pid
	}
	return startedIn(a)
}

// takerOf is who took the directory, as long as that process lives.
func takerOf(a state.Attempt) int {
	if m, ok, err := a.Mark(); err == nil && ok && a.Sees() && m.Alive() {
		return m.PID
	}
	return 0
}

// startedIn is the process that a daemon started. It is only believed by its command
// line: numbers are used again.
func startedIn(a state.Attempt) int {
	b, err := os.ReadFile(filepath.Join(a.Path(), "pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil || pid <= 1 {
		return 0
	}
	for range 100 {
		line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		switch {
		case err != nil:
			return 0
		case bytes.Contains(line, []byte(a.Path())):
			return pid
		case len(line) > 0:
			return 0
		}
		// A zombie has none, and for a moment one that begins to execute its program.
		if of, ok := state.Of(pid); !ok || !of.Alive() {
			return 0
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}

// running is the process of a directory: a child that was not collected yet, whose
// number is nobody else's, or one that an earlier daemon started.
func (p *Processes) running(a state.Attempt) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pid, ok := p.children[a.ID]; ok {
		return pid
	}
	return pidOf(a)
}

// Reap collects children that have ended, without waiting for any other.
func (p *Processes) Reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, pid := range p.children {
		var status unix.WaitStatus
		if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); got == pid || errors.Is(err, unix.ECHILD) {
			delete(p.children, id)
		}
	}
}

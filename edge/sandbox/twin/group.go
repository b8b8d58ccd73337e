package twin

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

type group struct {
	backend *Backend
	id      string
	limits  sandbox.Limits
	still   sandbox.Standstill

	mu      sync.Mutex // guards what follows
	ended   bool
	running map[*process]struct{}
}

// Reasons for which a twin ends a process, as causes of its context.
var (
	errTimeout = errors.New("the sandbox's time limit")
	errOutput  = errors.New("the sandbox's output limit")
	errKilled  = errors.New("the sandbox group was killed")
)

// killedCode is what a real backend reports for SIGKILL.
const (
	killedCode   = 137
	killedSignal = "SIGKILL"
)

type process struct {
	end  context.CancelCauseFunc
	gone chan struct{}
}

// Run calls the program of Argv[0].
func (g *group) Run(ctx context.Context, p sandbox.Process) (sandbox.Exit, error) {
	check := p
	if g.backend.cfg.Socket != nil && p.Role == sandbox.RoleWorker && p.Socket == nil {
		check.Socket = os.Stdin // never used: the channel comes from Config
	}
	if err := check.Validate(); err != nil {
		return sandbox.Exit{}, err
	}
	program := g.backend.cfg.Programs[p.Argv[0]]
	if program == nil {
		return sandbox.Exit{}, protocol.Errorf(protocol.CodeInvalidArgument,
			"the command cannot be executed inside the sandbox: %s: no such program in the twin", p.Argv[0])
	}
	if g.still.Moving(ctx) != nil || ctx.Err() != nil {
		return explain(ctx, ctx, killedCode)
	}
	conn, err := g.socket(p)
	if err != nil {
		return sandbox.Exit{}, err
	}
	inside, end := context.WithCancelCause(ctx)
	defer end(nil)
	proc := &process{end: end, gone: make(chan struct{})}
	if err := g.enter(proc); err != nil {
		if conn != nil {
			conn.Close()
		}
		return sandbox.Exit{}, err
	}
	defer g.leave(proc)
	limit := g.limits.Timeout
	if p.Timeout > 0 {
		limit = min(limit, p.Timeout)
	}
	var clock sync.WaitGroup
	over := make(chan struct{})
	clock.Go(func() {
		if g.still.Elapse(limit, over) {
			end(errTimeout)
		}
	})
	code := program(inside, g.call(p, conn, inside, end))
	close(over)
	clock.Wait()
	if conn != nil {
		conn.Close()
	}
	return explain(ctx, inside, code)
}

// call is the program's view. Its socket breaks when the process is killed.
func (g *group) call(p sandbox.Process, conn net.Conn, inside context.Context, end context.CancelCauseFunc) Call {
	out := &outlet{ctx: inside, end: end, still: &g.still, left: g.limits.OutputBytes}
	c := Call{
		Argv: p.Argv, Env: p.Env, Dir: p.Dir, Workspace: p.Workspace, Stdin: p.Stdin,
		Stdout: stream{out, p.Stdout}, Stderr: stream{out, p.Stderr}, Socket: conn, still: &g.still,
	}
	if c.Stdin == nil {
		c.Stdin = strings.NewReader("")
	}
	if conn != nil {
		context.AfterFunc(inside, func() { conn.Close() })
	}
	return c
}

func (g *group) socket(p sandbox.Process) (net.Conn, error) {
	switch {
	case p.Role != sandbox.RoleWorker:
		return nil, nil
	case g.backend.cfg.Socket != nil:
		return g.backend.cfg.Socket(g.id)
	}
	return net.FileConn(p.Socket)
}

func (g *group) enter(p *process) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox group %s was killed; make a new one", g.id)
	}
	g.running[p] = struct{}{}
	return nil
}

func (g *group) leave(p *process) {
	g.mu.Lock()
	delete(g.running, p)
	g.mu.Unlock()
	close(p.gone)
}

// explain turns the cause of a process's end into an Exit. ctx is the caller's.
func explain(ctx, inside context.Context, code int) (sandbox.Exit, error) {
	e := sandbox.Exit{Code: killedCode, Signal: killedSignal}
	cause := context.Cause(inside)
	switch {
	case inside.Err() == nil:
		return sandbox.Exit{Code: code}, nil
	case errors.Is(cause, errOutput):
		e.OutputLimit = true
	case errors.Is(cause, errTimeout), errors.Is(cause, context.DeadlineExceeded):
		e.Timeout = true
	default:
		e.Killed = true
		if ctx.Err() != nil && !errors.Is(cause, errKilled) {
			return e, cause
		}
	}
	return e, nil
}

// Freeze makes programs wait where they write, and their time stand still.
func (g *group) Freeze(context.Context) error { return g.setFrozen(true) }

// Thaw lets them go on.
func (g *group) Thaw(context.Context) error { return g.setFrozen(false) }

func (g *group) setFrozen(frozen bool) error {
	if g.backend.cfg.Report.Freezer == "" {
		return protocol.Errorf(protocol.CodeIncompatible, "this twin is of a machine that cannot freeze")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox group %s was killed: it has nothing to freeze or thaw", g.id)
	}
	g.still.Set(frozen)
	return nil
}

// Kill ends all processes and waits until they have returned.
func (g *group) Kill(ctx context.Context) error {
	g.mu.Lock()
	g.ended = true
	var all []*process
	for p := range g.running {
		all = append(all, p)
	}
	g.mu.Unlock()
	for _, p := range all {
		p.end(errKilled)
	}
	g.still.Set(false)
	for _, p := range all {
		select {
		case <-p.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close kills and forgets the group.
func (g *group) Close(ctx context.Context) error {
	if err := g.Kill(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	g.backend.mu.Lock()
	defer g.backend.mu.Unlock()
	if g.backend.groups[g.id] == g {
		delete(g.backend.groups, g.id)
	}
	return nil
}

// outlet is the output that both streams share.
type outlet struct {
	ctx   context.Context
	end   context.CancelCauseFunc
	still *sandbox.Standstill

	mu   sync.Mutex // guards left
	left int64
}

type stream struct {
	*outlet
	to io.Writer
}

// Write passes what the limit leaves, not while frozen, and fails once the process
// was killed.
func (s stream) Write(p []byte) (int, error) {
	if err := s.still.Moving(s.ctx); err != nil || s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	s.mu.Lock()
	n := int(min(int64(len(p)), s.left))
	s.left -= int64(n)
	s.mu.Unlock()
	if n > 0 && s.to != nil {
		if _, err := s.to.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	if n < len(p) {
		s.end(errOutput)
		return n, errOutput
	}
	return n, nil
}

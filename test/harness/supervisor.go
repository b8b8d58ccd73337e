package harness

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge"
	"bivouac/edge/edgetest"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/relay"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/twin"
	"bivouac/edge/state"
	"bivouac/edge/supervise"
	"bivouac/edge/worker"
	"bivouac/edge/worker/tool"
)

// supervisors of one machine. They outlive its daemons, as processes do.
type supervisors struct {
	edge    *Edge
	spawner edge.Spawner

	mu  sync.Mutex // guards all
	all map[protocol.AttemptID]*supervisor
}

// supervisor is one of them.
type supervisor struct {
	process *process
	client  interface{ CloseIdleConnections() }
}

func newSupervisors(e *Edge) *supervisors {
	s := &supervisors{edge: e, all: map[protocol.AttemptID]*supervisor{}}
	s.spawner = edgetest.InProcess(s.start, s.kill)
	return s
}

// start is what `bivouac-edge supervise` does, with pipes for sockets and
// functions for sandboxes.
func (s *supervisors) start(_ context.Context, a state.Attempt) (connect.HTTPClient, error) {
	nonce, err := a.BootNonce()
	if err != nil {
		return nil, err
	}
	root, err := s.edge.dir.Root()
	if err != nil {
		return nil, err
	}
	w, listener := s.edge.w, linktest.NewListener()
	cfg := supervise.Config{
		Dir: a.Path(), Attempt: a.ID, BootNonce: nonce, Listener: listener, Elapsed: w.elapsed,
		Backend: s.edge.backend, WorkerFunc: worker.Run,
		Dial: relay.Dial(link.Config{Trust: link.Trust{Role: identity.RoleBroker, Root: root},
			Certificate: s.edge.dir.Certificate, Network: w.net.Network(s.edge.ip)}),
		Log: w.Log.logger(s.edge.Name),
	}
	client := supervise.ClientOver(listener.Dial)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[a.ID] = &supervisor{client: client,
		process: run(func(ctx context.Context) error { return supervise.Run(ctx, cfg) })}
	return client, nil
}

// kill ends one, with everything it started.
func (s *supervisors) kill(a state.Attempt) {
	s.mu.Lock()
	one := s.all[a.ID]
	delete(s.all, a.ID)
	s.mu.Unlock()
	if one != nil {
		one.end(s.edge)
	}
}

func (s *supervisors) endAll() {
	s.mu.Lock()
	var doomed []*supervisor
	for id, one := range s.all {
		doomed = append(doomed, one)
		delete(s.all, id)
	}
	s.mu.Unlock()
	for _, one := range doomed {
		one.end(s.edge)
	}
}

func (one *supervisor) end(e *Edge) {
	one.process.stop(e.w.t)
	one.client.CloseIdleConnections()
}

// Supervisors that run on the machine now.
func (e *Edge) Supervisors() (n int) {
	e.supervisors.mu.Lock()
	defer e.supervisors.mu.Unlock()
	for _, one := range e.supervisors.all {
		select {
		case <-one.process.done:
		default:
			n++
		}
	}
	return n
}

// report is what the machines' sandboxes were seen to do; zero: everything.
func (w *World) report() sandbox.Report {
	if !w.opt.NoFreezer {
		return sandbox.Report{}
	}
	return sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}
}

// programs are what a sandbox of a machine can execute: the workspace tools, and
// a shell that knows "sleep DURATION" and the commands of Options.
func (w *World) programs(host string) map[string]twin.Program {
	return map[string]twin.Program{
		supervise.WorkerInside: func(_ context.Context, c twin.Call) int {
			return tool.Run(c.Argv[2], c.Workspace, c.Stdin, c.Stdout)
		},
		"/bin/sh": func(ctx context.Context, c twin.Call) int {
			line := c.Argv[2]
			log := w.Log.logger(host)
			log.Info("command started", "command", line)
			defer func() { log.Info("command ended", "command", line, "killed", ctx.Err() != nil) }()
			if known := w.opt.Commands[line]; known != nil {
				return known(ctx, c)
			}
			return sleep(ctx, c, line)
		},
	}
}

// sleep is the one command that every shell knows.
func sleep(ctx context.Context, c twin.Call, line string) int {
	var text string
	fmt.Sscanf(line, "sleep %s", &text)
	d, err := time.ParseDuration(text)
	if err != nil {
		fmt.Fprintf(c.Stderr, "sh: %s: not found\n", line)
		return 127
	}
	if !c.Sleep(ctx, d) {
		return 137
	}
	fmt.Fprintln(c.Stdout, "slept "+text)
	return 0
}

// Package twin is a sandbox backend inside one process, for tests in virtual
// time: a "process" is a Go function. It has the same lifecycle as a real
// backend (exits, streams, output limit, timeouts, kill, sweep) and passes that
// part of sandboxtest.
//
// It confines nothing and limits neither memory nor processes nor disk. It
// refuses nothing that a hostile program could do and must never be part of a
// binary. Everything it waits for is durably blocking in testing/synctest.
package twin

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// Call is what a program gets in place of a process image.
type Call struct {
	Argv      []string
	Env       []string
	Dir       string
	Workspace string // host folder; what is /workspace in a real sandbox
	Stdin     io.Reader
	Stdout    io.Writer
	Stderr    io.Writer
	Socket    net.Conn // RoleWorker only; closed when the program returns
	still     *sandbox.Standstill
}

// Sleep is how a program waits as a process does: time while frozen is no part of
// it. It reports false when ctx ended before.
func (c Call) Sleep(ctx context.Context, d time.Duration) bool { return c.still.Elapse(d, ctx.Done()) }

// Program is one executable. It returns its exit code, and must return when ctx
// ends, which is how a twin kills.
type Program func(ctx context.Context, c Call) int

// Config of a Backend.
type Config struct {
	// Programs by Argv[0].
	Programs map[string]Program
	// Socket gives a worker of a group its end of the channel, in place of the
	// descriptor in Process, which does not work in virtual time. Nil uses the
	// descriptor.
	Socket func(group string) (net.Conn, error)
	// Report is what Probe answers; the zero value is a usable process boundary
	// with limits and a freezer.
	Report sandbox.Report
}

// Backend keeps groups by id.
type Backend struct {
	cfg Config

	mu     sync.Mutex // guards groups
	groups map[string]*group
}

// New makes a backend.
func New(cfg Config) *Backend {
	if cfg.Report == (sandbox.Report{}) {
		cfg.Report = sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup, Freezer: "twin"}
	}
	return &Backend{cfg: cfg, groups: map[string]*group{}}
}

// Probe answers what the test wants.
func (b *Backend) Probe(context.Context) sandbox.Report { return b.cfg.Report }

// Group makes a group.
func (b *Backend) Group(ctx context.Context, id string, l sandbox.Limits) (sandbox.Group, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := sandbox.ValidateID(id); err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.groups[id] != nil {
		return nil, protocol.Errorf(protocol.CodeAlreadyExists, "a sandbox group %s exists already; sweep it first", id)
	}
	g := &group{backend: b, id: id, limits: l, running: map[*process]struct{}{}}
	b.groups[id] = g
	return g, nil
}

// Clear closes one group.
func (b *Backend) Clear(ctx context.Context, id string) error {
	b.mu.Lock()
	g := b.groups[id]
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.Close(ctx)
}

// Tidy has nothing to remove.
func (b *Backend) Tidy(context.Context) error { return nil }

// Sweep closes groups that are not kept: to a twin, all groups are its own.
func (b *Backend) Sweep(ctx context.Context, keep []string) ([]string, error) {
	b.mu.Lock()
	var doomed []*group
	for id, g := range b.groups {
		if !slices.Contains(keep, id) {
			doomed = append(doomed, g)
		}
	}
	b.mu.Unlock()
	var removed []string
	for _, g := range doomed {
		if err := g.Close(ctx); err != nil {
			return removed, err
		}
		removed = append(removed, g.id)
	}
	slices.Sort(removed)
	return removed, nil
}

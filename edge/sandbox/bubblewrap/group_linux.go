package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/cgroup"
)

// group is all processes of one attempt.
type group struct {
	backend *Backend
	id      string
	limits  sandbox.Limits
	cgroup  *cgroup.Group // nil where there are no control groups
	spawner *spawner
	stage   *stage // for the spawner's thread only
	still   sandbox.Standstill

	mu      sync.Mutex // guards what follows; held while a process starts
	ended   bool       // killed or closed: nothing starts any more
	closed  bool
	running map[*run]struct{}
	owned   map[string]bool  // workspaces given to the sandbox's uid
	used    map[string]int64 // size of workspaces, as last measured
	made    []string         // empty folders that stood in for protected paths
	blamed  cgroup.Counters  // hits that a run's exit has explained already
}

// Run starts p and waits until its whole PID namespace is gone.
func (g *group) Run(ctx context.Context, p sandbox.Process) (sandbox.Exit, error) {
	if err := p.Validate(); err != nil {
		return sandbox.Exit{}, err
	}
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	r, err := g.startThawed(ctx, p)
	if ctx.Err() != nil && r == nil {
		return cancelled(ctx)
	}
	if err != nil {
		return sandbox.Exit{}, err
	}
	return r.wait(ctx)
}

// startThawed waits while the group is frozen: a process that is forked into a
// frozen group stops before it has told its parent that it lives.
func (g *group) startThawed(ctx context.Context, p sandbox.Process) (*run, error) {
	for {
		if err := g.still.Moving(ctx); err != nil {
			return nil, err
		}
		r, err := g.start(p)
		if !errors.Is(err, errFrozen) {
			return r, err
		}
	}
}

var errFrozen = errors.New("the sandbox group is frozen")

// cancelled is the exit of a process that ctx ended.
func cancelled(ctx context.Context) (sandbox.Exit, error) {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return sandbox.Exit{Timeout: true}, nil
	}
	return sandbox.Exit{Killed: true}, cause
}

func (g *group) start(p sandbox.Process) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox group %s was killed; make a new one", g.id)
	}
	if frozen, _ := g.still.Look(); frozen {
		return nil, errFrozen
	}
	r := &run{group: g, role: p.Role, limit: g.limits.Timeout, pidfd: -1, gone: make(chan struct{})}
	if p.Timeout > 0 {
		r.limit = min(r.limit, p.Timeout)
	}
	if err := r.start(p); err != nil {
		return nil, err
	}
	g.running[r] = struct{}{}
	return r, nil
}

// claim gives a workspace to the sandbox's uid, once a group.
func (g *group) claim(w *workspace) error {
	g.made = append(g.made, prefixed(w.host, w.made)...)
	if g.backend.keepsUID || g.owned[w.host] {
		return nil
	}
	if err := own(w.root, g.backend.cfg.UID, g.backend.cfg.GID); err != nil {
		return fmt.Errorf("give the workspace to uid %d: %w", g.backend.cfg.UID, err)
	}
	g.owned[w.host] = true
	return nil
}

func prefixed(dir string, names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, filepath.Join(dir, n))
	}
	return all
}

// measured notes the size of a workspace and reports whether it grew.
func (g *group) measured(host string, used int64) (grown bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grown = used > g.used[host]
	g.used[host] = used
	return grown
}

func (g *group) forget(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, r)
}

// blame reads which limits were hit since the last process ended badly. One
// process is blamed for a hit, not every later one.
func (g *group) blame() cgroup.Counters {
	if g.cgroup == nil {
		return cgroup.Counters{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.cgroup.Counters()
	if err != nil {
		g.backend.cfg.Log.Warn("cannot read sandbox counters", "group", g.id, "error", err)
		return cgroup.Counters{}
	}
	hit := cgroup.Counters{
		OutOfMemory: now.OutOfMemory - g.blamed.OutOfMemory,
		PIDsRefused: now.PIDsRefused - g.blamed.PIDsRefused,
	}
	g.blamed = now
	return hit
}

// freezeIn bounds a change of the freezer: one that a process holds up for longer
// is as good as none.
const freezeIn = 5 * time.Second

// Freeze holds the group's lock while the kernel stops it: nothing starts
// meanwhile, and time stands still from before the first process stopped.
func (g *group) Freeze(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.mayFreeze(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, freezeIn)
	defer cancel()
	g.still.Set(true)
	if err := g.cgroup.Freeze(ctx); err != nil {
		thawed := g.cgroup.Thaw(context.WithoutCancel(ctx))
		g.still.Set(false)
		return errors.Join(err, thawed)
	}
	return nil
}

// Thaw lets the processes, and their time, go on.
func (g *group) Thaw(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.mayFreeze(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, freezeIn)
	defer cancel()
	if err := g.cgroup.Thaw(ctx); err != nil {
		return err
	}
	g.still.Set(false)
	return nil
}

func (g *group) mayFreeze() error {
	switch {
	case g.ended:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox group %s was killed: it has nothing to freeze or thaw", g.id)
	case g.cgroup == nil:
		return protocol.Errorf(protocol.CodeIncompatible, "this machine has no control groups, so it cannot freeze sandboxes")
	}
	return nil
}

// Kill ends all processes and returns when the kernel has none left.
func (g *group) Kill(ctx context.Context) error {
	g.mu.Lock()
	g.ended = true
	var all []*run
	for r := range g.running {
		all = append(all, r)
	}
	g.mu.Unlock()
	for _, r := range all {
		r.end(func(e *sandbox.Exit) { e.Killed = true })
	}
	var err error
	if g.cgroup != nil {
		err = g.cgroup.Kill(ctx)
	}
	g.still.Set(false) // who waits to start is told that the group has ended
	for _, r := range all {
		select {
		case <-r.gone:
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("kill the sandbox group %s: %w", g.id, context.Cause(ctx)))
		}
	}
	return err
}

// closeIn bounds Close, which has to finish also when its caller is cancelled.
const closeIn = 20 * time.Second

// Close kills and removes what the group made. It may be called again.
func (g *group) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		return err // processes are left: removing the group would lose them
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.spawner.stop()
	if g.cgroup != nil {
		if err := g.cgroup.Remove(ctx); err != nil {
			return err
		}
	}
	g.closed = true
	for _, dir := range g.made {
		// Only if it is still the empty folder that we made; and only now, because
		// removing a mount point uncovers it in the sandboxes that have it.
		_ = os.Remove(dir)
	}
	return nil
}

package edge

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// ops runs long work: started by one tick, its end an input to a later one. It
// is the only place of the daemon that starts goroutines besides the loops.
type ops struct {
	ctx context.Context
	g   *errgroup.Group

	mu      sync.Mutex // guards running
	running map[string]context.CancelCauseFunc
}

func newOps(ctx context.Context, g *errgroup.Group) *ops {
	return &ops{ctx: ctx, g: g, running: map[string]context.CancelCauseFunc{}}
}

// start runs fn unless an op of that name runs already.
func (o *ops) start(name string, fn func(ctx context.Context)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.running[name]; ok || o.ctx.Err() != nil {
		return false
	}
	ctx, cancel := context.WithCancelCause(o.ctx)
	o.running[name] = cancel
	o.g.Go(func() error {
		defer o.end(name)
		fn(ctx)
		return nil
	})
	return true
}

func (o *ops) end(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running[name](context.Canceled)
	delete(o.running, name)
}

// cancel ends an op with a cause; it may still run when cancel returns.
func (o *ops) cancel(name string, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.running[name]; ok {
		c(cause)
	}
}

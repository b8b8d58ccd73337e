package engine

import (
	"context"
	"errors"
	"sync"

	"bivouac/edge/protocol"
)

// Ops runs long I/O outside the ticks. A tick starts an op; what the op has to
// say becomes the input of a later tick. It is the only place with goroutines.
type Ops interface {
	// Start runs fn under a key unless one already runs under it, and reports
	// whether it was started.
	Start(key string, fn func(ctx context.Context)) bool
	// Stop cancels the op of a key; it ends by itself soon after.
	Stop(key string)
	// Running reports an op that was started and has not ended.
	Running(key string) bool
	// Run lets ops run until ctx ends, and returns when none is left.
	Run(ctx context.Context) error
}

// Causes of the end of an op.
var (
	errOpStopped = protocol.Errorf(protocol.CodeCancelled, "the op was stopped: its work is no longer wanted")
	errShutdown  = protocol.Errorf(protocol.CodeUnavailable, "the server is stopping")
)

// Goroutines is the Ops of a server: one goroutine an op, while Run runs.
type Goroutines struct {
	mu      sync.Mutex // guards below
	ctx     context.Context
	running map[string]context.CancelCauseFunc
	wg      sync.WaitGroup
}

// NewGoroutines makes a runner that takes ops once Run runs.
func NewGoroutines() *Goroutines {
	return &Goroutines{running: map[string]context.CancelCauseFunc{}}
}

// Run takes ops until ctx ends, cancels what runs, and waits for it.
func (g *Goroutines) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errShutdown)
	g.mu.Lock()
	if g.ctx != nil {
		g.mu.Unlock()
		return errors.New("engine: the op runner runs already")
	}
	g.ctx = ctx
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	g.ctx = nil // nothing starts from here
	g.mu.Unlock()
	g.wg.Wait()
	return nil
}

// Start runs fn in its goroutine. Before Run and after its end nothing starts;
// the tick that asked finds its work again.
func (g *Goroutines) Start(key string, fn func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil || g.running[key] != nil {
		return false
	}
	ctx, cancel := context.WithCancelCause(g.ctx)
	g.running[key] = cancel
	g.wg.Go(func() {
		defer cancel(nil)
		defer g.ended(key)
		fn(ctx)
	})
	return true
}

func (g *Goroutines) ended(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, key)
}

// Stop cancels one op.
func (g *Goroutines) Stop(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cancel := g.running[key]; cancel != nil {
		cancel(errOpStopped)
	}
}

// Running reports an op that has not ended.
func (g *Goroutines) Running(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[key] != nil
}

// Package op runs long work outside of loops, and wakes loops.
//
// A loop starts an op under a name; what the op has to say is the input of a later
// turn of a loop. Runner guarantees that one op of a name runs at a time, that none
// starts outside of its span, and that nothing runs when Wait has returned. Bell is
// a wake-up that is remembered once; Sleep is a wait that a context ends. The package refuses to know what is done, to
// repeat it and to queue it: who was told no asks again. It imports the standard
// library alone. Test it with go test alone.
package op

import (
	"context"
	"errors"
	"sync"
)

// Runner runs ops between Begin and the end of its context. The zero Runner is
// ready for Begin.
type Runner struct {
	mu      sync.Mutex // guards below
	ctx     context.Context
	running map[string]context.CancelCauseFunc
	wg      sync.WaitGroup
}

// Begin takes ops until ctx ends; Wait returns when they have ended, too.
func (r *Runner) Begin(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx != nil {
		return errors.New("op: the runner runs already")
	}
	r.ctx = ctx
	return nil
}

// Wait returns when the runner's context has ended and no op is left.
func (r *Runner) Wait() {
	<-r.Context().Done()
	r.mu.Lock()
	r.ctx = nil // nothing starts from here
	r.mu.Unlock()
	r.wg.Wait()
}

// Run is Begin and Wait.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.Begin(ctx); err != nil {
		return err
	}
	r.Wait()
	return nil
}

// Context is that of the runner: it outlives the stop of an op.
func (r *Runner) Context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil {
		return ended
	}
	return r.ctx
}

// ended is the context of a runner that takes no ops.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Start runs fn under a name unless one runs under it already, and reports whether
// it was started. Before Begin and after the end nothing starts.
func (r *Runner) Start(name string, fn func(ctx context.Context)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil || r.ctx.Err() != nil || r.running[name] != nil {
		return false
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	if r.running == nil {
		r.running = map[string]context.CancelCauseFunc{}
	}
	r.running[name] = cancel
	r.wg.Go(func() {
		defer cancel(nil)
		defer r.forget(name)
		fn(ctx)
	})
	return true
}

func (r *Runner) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, name)
}

// Stop ends the op of a name with a cause; it may still run when Stop returns.
func (r *Runner) Stop(name string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cancel := r.running[name]; cancel != nil {
		cancel(cause)
	}
}

// Running reports an op that was started and has not ended.
func (r *Runner) Running(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[name] != nil
}

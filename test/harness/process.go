package harness

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sync/errgroup"
)

// errStopped is the cause with which a part is stopped.
var errStopped = errors.New("the harness stops this part")

// process is one part of a world that runs until it is stopped.
type process struct {
	cancel context.CancelCauseFunc
	group  *errgroup.Group
	done   chan struct{} // closed at its end
}

// run starts a part.
func run(fn func(context.Context) error) *process {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &process{cancel: cancel, group: new(errgroup.Group), done: make(chan struct{})}
	p.group.Go(func() error {
		defer close(p.done)
		err := fn(ctx)
		if ctx.Err() != nil && (errors.Is(err, errStopped) || errors.Is(err, context.Canceled)) {
			return nil
		}
		return err
	})
	return p
}

// wait returns what the part said at its end.
func (p *process) wait() error { return p.group.Wait() }

// stop ends the part as a signal would and waits; an error of it fails the test.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if p == nil {
		return
	}
	p.cancel(errStopped)
	if err := p.wait(); err != nil {
		t.Errorf("a part ended with: %v", err)
	}
}

// part is a place for a process that comes and goes.
type part struct{ now *process }

func (p *part) stop(t *testing.T) {
	t.Helper()
	p.now.stop(t)
	p.now = nil
}

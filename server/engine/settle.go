package engine

import (
	"context"
	"sync"
	"time"

	"bivouac/edge/op"
)

// completion is what an op has to say, as the input of the settle tick. apply
// may run again after a failure of the store.
type completion struct {
	op    string
	apply func(ctx context.Context) error
}

// inbox holds completions until they are applied, oldest first.
type inbox struct {
	wake op.Bell

	mu    sync.Mutex // guards below
	queue []completion
	// retryAt is when the head may be tried again after a failure.
	retryAt time.Time
}

func newInbox() *inbox { return &inbox{wake: op.NewBell()} }

func (b *inbox) put(c completion) {
	b.mu.Lock()
	b.queue = append(b.queue, c)
	b.mu.Unlock()
	b.wake.Ring()
}

// pending reports a completion of an op that is not applied yet: its op no
// longer runs, and must not be started again.
func (b *inbox) pending(op string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.queue {
		if c.op == op {
			return true
		}
	}
	return false
}

func (b *inbox) head() (completion, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 || time.Now().Before(b.retryAt) {
		return completion{}, false
	}
	return b.queue[0], true
}

func (b *inbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue[0] = completion{}
	b.queue = b.queue[1:]
}

// settleRetry is how long a completion waits when the store failed.
const settleRetry = 100 * time.Millisecond

func (b *inbox) postpone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retryAt = time.Now().Add(settleRetry)
}

func (b *inbox) retryIn() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return time.Hour
	}
	return time.Until(b.retryAt)
}

// busy reports an op that runs or whose completion waits.
func (e *Engine) busy(op string) bool { return e.cfg.Ops.Running(op) || e.settled.pending(op) }

// tickSettle applies one completion. What only lost a race is dropped: its
// state moved on. INV-3.
func (e *Engine) tickSettle(ctx context.Context) (bool, error) {
	c, ok := e.settled.head()
	if !ok {
		return false, nil
	}
	err := c.apply(ctx)
	switch {
	case lostRace(err):
		e.cfg.Log.Info("completion came too late", "op", c.op, "reason", err)
	case err != nil:
		e.settled.postpone()
		return false, err
	}
	e.settled.drop()
	return true, nil
}

package engine

import (
	"context"
	"slices"
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

// oldest completions, so many at the most.
func (b *inbox) oldest(most int) []completion {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.retryAt) {
		return nil
	}
	return slices.Clone(b.queue[:min(most, len(b.queue))])
}

// drop removes those of the oldest completions that were applied; the others keep
// their places.
func (b *inbox) drop(applied []bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var left []completion
	for i, done := range applied {
		if !done {
			left = append(left, b.queue[i])
		}
	}
	b.queue = append(left, b.queue[len(applied):]...)
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

// tickSettle applies the oldest completions. What only lost a race is dropped: its
// state moved on. INV-3.
func (e *Engine) tickSettle(ctx context.Context) (bool, error) {
	oldest := e.settled.oldest(max(1, e.atOnce))
	applied := make([]bool, len(oldest))
	places := make([]int, len(oldest))
	for i := range places {
		places[i] = i
	}
	worked, err := spread(e.atOnce, places, func(i int) (bool, error) {
		err := oldest[i].apply(ctx)
		if lostRace(err) {
			e.cfg.Log.Info("completion came too late", "op", oldest[i].op, "reason", err)
			err = nil
		}
		applied[i] = err == nil
		return applied[i], err
	})
	e.settled.drop(applied)
	if err != nil {
		e.settled.postpone()
		return false, err
	}
	return worked, nil
}

package op

import (
	"context"
	"time"
)

// Bell wakes one loop: it holds one wake-up, more would say nothing more.
type Bell chan struct{}

// NewBell is silent.
func NewBell() Bell { return make(Bell, 1) }

// Ring never waits.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Wait returns when the bell was rung, after d when it is positive, or when ctx
// ends.
func (b Bell) Wait(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-b:
	case <-after:
	case <-ctx.Done():
	}
}

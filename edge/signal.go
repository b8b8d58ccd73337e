package edge

import (
	"context"
	"sync"
	"time"
)

// signal wakes one loop: many sets before it looks are one wake.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait returns when the signal was set, after d when it is positive, or when ctx
// ends.
func (s signal) wait(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-s:
	case <-after:
	case <-ctx.Done():
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// mailbox follows which deliveries are dealt with: the server may forget up to
// the last one before the first that is not.
type mailbox struct {
	mu      sync.Mutex // guards the fields below
	open    map[int64]bool
	highest int64
	acked   int64
}

// begin notes a delivery; it reports false for one that is being dealt with or
// that already was.
func (m *mailbox) begin(seq int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seq <= m.highest {
		return false
	}
	if m.open == nil {
		m.open = map[int64]bool{}
	}
	m.open[seq], m.highest = true, seq
	return true
}

func (m *mailbox) done(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, seq)
}

// due is the sequence to acknowledge; ok is false when there is nothing new.
func (m *mailbox) due() (seq int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seq = m.highest
	for s := range m.open {
		seq = min(seq, s-1)
	}
	return seq, seq > m.acked
}

func (m *mailbox) acknowledged(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked = max(m.acked, seq)
}

// resume takes the server's cursor after a connect: deliveries that were begun
// and not finished come again.
func (m *mailbox) resume(first int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked, m.highest, m.open = first-1, first-1, nil
}

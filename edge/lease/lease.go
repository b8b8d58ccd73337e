package lease

import (
	"sync"
	"time"
)

// Lease is the time that a holder has left: authority to act, and retention
// before the work is ended. Both run from when the claim or renewal was sent,
// so that the holder always stops before the server takes the lease back
// (INV-20).
type Lease struct {
	elapsed Elapsed

	mu        sync.Mutex // guards the fields below
	sent      time.Duration
	ttl       time.Duration
	authority *Countdown
	retention *Countdown
}

// NewLease has no authority until Renew.
func NewLease(e Elapsed) *Lease { return &Lease{elapsed: e} }

// Now reads the clock: take it right before a claim or renewal is sent.
func (l *Lease) Now() time.Duration { return l.elapsed() }

// Renew restarts both durations from sent. The answer to an older request than
// the last one changes nothing.
func (l *Lease) Renew(sent, authority, retention time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.authority != nil && sent < l.sent {
		return
	}
	if l.authority == nil {
		l.authority, l.retention = NewCountdown(l.elapsed, 0), NewCountdown(l.elapsed, 0)
	}
	l.sent, l.ttl = sent, authority
	l.authority.Reset(sent, authority)
	l.retention.Reset(sent, retention)
}

// Authority that is left; zero or less means: do nothing any more.
func (l *Lease) Authority() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return left(l.authority)
}

// Retention that is left; zero or less means: end the work.
func (l *Lease) Retention() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return left(l.retention)
}

func left(c *Countdown) time.Duration {
	if c == nil {
		return 0
	}
	return c.Left()
}

// RenewIn is how often a holder renews.
func RenewIn(ttl time.Duration) time.Duration { return ttl / 3 }

// Due is how long to wait before the next renewal: a third of the ttl after the
// last one was sent.
func (l *Lease) Due() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return RenewIn(l.ttl) - (l.elapsed() - l.sent)
}

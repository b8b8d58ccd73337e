// Package lease measures how long something was held, suspend included. It is
// the one clock seam of the product: Go's timers do not count suspend, so every
// holder of a lease reads Elapsed before it uses the lease (INV-20). A paused or
// restored virtual machine is not counted; the guarantees say so.
package lease

import "time"

// Elapsed returns the time since a fixed point in the past, suspend included.
// No clock setting changes it.
type Elapsed func() time.Duration

// Countdown is a duration that runs from its last reset.
type Countdown struct {
	elapsed Elapsed
	ttl     time.Duration
	from    time.Duration
}

// NewCountdown starts now.
func NewCountdown(e Elapsed, ttl time.Duration) *Countdown {
	return &Countdown{elapsed: e, ttl: ttl, from: e()}
}

// Reset starts it again with a new duration, measured from an earlier reading of
// the same clock: for a lease, when the renewal was sent, never when its answer
// came.
func (c *Countdown) Reset(from, ttl time.Duration) { c.from, c.ttl = from, ttl }

// Left is what remains; zero or less means it is over.
func (c *Countdown) Left() time.Duration { return c.ttl - (c.elapsed() - c.from) }

// Over reports the end.
func (c *Countdown) Over() bool { return c.Left() <= 0 }

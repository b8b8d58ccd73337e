package link

import (
	"math/rand/v2"
	"time"
)

// Backoff spaces attempts that fail: each wait is drawn evenly between zero and
// a bound that doubles up to Max (full jitter), so that machines cut off
// together do not come back together. Success resets it.
type Backoff struct {
	Base, Max time.Duration
	// Float gives numbers in [0,1); nil means math/rand.
	Float func() float64

	failures int
}

// Next is the wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	bound := b.Base
	for i := 0; i < b.failures && bound < b.Max; i++ {
		bound *= 2
	}
	bound = min(bound, b.Max)
	b.failures++
	f := rand.Float64
	if b.Float != nil {
		f = b.Float
	}
	return time.Duration(f() * float64(bound))
}

// Reset forgets the failures.
func (b *Backoff) Reset() { b.failures = 0 }

// Failures since the last success.
func (b *Backoff) Failures() int { return b.failures }

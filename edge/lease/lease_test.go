package lease_test

import (
	"testing"
	"time"

	"bivouac/edge/lease"
)

// clock is an elapsed time set by hand.
type clock struct{ at time.Duration }

func (c *clock) now() time.Duration { return c.at }

// INV-20: a lease runs from when the renewal was sent, and a late answer to an
// older renewal does not lengthen or shorten it.
func TestLeaseRunsFromWhenItWasSent(t *testing.T) {
	c := &clock{at: 100 * time.Second}
	l := lease.NewLease(c.now)
	if l.Authority() > 0 || l.Retention() > 0 {
		t.Fatal("a lease that was never renewed has authority")
	}
	sent := l.Now()
	c.at += 4 * time.Second // the answer takes long
	l.Renew(sent, 15*time.Second, time.Minute)
	if got := l.Authority(); got != 11*time.Second {
		t.Errorf("authority left %v, want 11s", got)
	}
	if got := l.Due(); got != time.Second {
		t.Errorf("next renewal in %v, want 1s", got)
	}
	c.at += 11 * time.Second
	if l.Authority() > 0 {
		t.Error("authority outlives its ttl")
	}
	if got := l.Retention(); got != 45*time.Second {
		t.Errorf("retention left %v, want 45s", got)
	}
	newer := l.Now()
	l.Renew(newer, 15*time.Second, time.Minute)
	l.Renew(sent, 15*time.Second, time.Minute)
	if got := l.Authority(); got != 15*time.Second {
		t.Errorf("an older answer changed the authority to %v", got)
	}
}

// Suspend shows as a jump of the clock, and ends the lease.
func TestSuspendCounts(t *testing.T) {
	c := &clock{}
	l := lease.NewLease(c.now)
	l.Renew(l.Now(), 15*time.Second, time.Minute)
	c.at += 8 * time.Hour
	if l.Authority() > 0 || l.Retention() > 0 {
		t.Error("the lease slept with the machine")
	}
}

func TestBoottimeMovesForward(t *testing.T) {
	a := lease.Boottime()
	if b := lease.Boottime(); b < a || a <= 0 {
		t.Errorf("%v, then %v", a, b)
	}
}

package execution

import (
	"testing"
	"time"
)

// TestLease: the two durations run from the last renewal, to the nanosecond.
// INV-20.
func TestLease(t *testing.T) {
	const boot = 1000 * time.Hour // elapsed readings begin anywhere
	l := NewLease(15*time.Second, 10*time.Minute, boot)
	over := 10*time.Minute + LeaseGuard
	for _, c := range []struct {
		after time.Duration
		want  LeaseState
		next  time.Duration
	}{
		{0, LeaseAlive, 15 * time.Second},
		{15*time.Second - 1, LeaseAlive, 1},
		{15 * time.Second, LeaseSuspect, over - 15*time.Second},
		{10 * time.Minute, LeaseSuspect, LeaseGuard},
		{over - 1, LeaseSuspect, 1},
		{over, LeaseOver, 0},
		{over + time.Hour, LeaseOver, 0},
	} {
		if got := l.State(boot + c.after); got != c.want {
			t.Errorf("after %s: %s, want %s", c.after, got, c.want)
		}
		if got := l.NextIn(boot + c.after); got != c.next {
			t.Errorf("after %s the next change is in %s, want %s", c.after, got, c.next)
		}
	}
	renewed := l.Renewed(boot + 20*time.Second)
	if renewed.State(boot+34*time.Second) != LeaseAlive || renewed.State(boot+35*time.Second) != LeaseSuspect {
		t.Error("a renewal does not restart the durations")
	}
	if earlier := renewed.Renewed(boot); earlier != renewed {
		t.Error("an older reading shortened the lease")
	}
	if l.State(boot+15*time.Second) != LeaseSuspect {
		t.Error("a renewal changed the lease it came from")
	}
}

func TestLeaseRetentionIsAtLeastTheTTL(t *testing.T) {
	l := NewLease(time.Minute, time.Second, 0)
	if l.State(59*time.Second) != LeaseAlive || l.State(time.Minute+LeaseGuard-1) != LeaseSuspect || l.State(time.Minute+LeaseGuard) != LeaseOver {
		t.Errorf("%+v", l)
	}
}

func TestBindingAllows(t *testing.T) {
	for name, c := range map[string]struct {
		b      Binding
		action string
		want   bool
	}{
		"named":   {Binding{Actions: []string{"files.read"}}, "files.read", true},
		"other":   {Binding{Actions: []string{"files.read"}}, ActionTurn, false},
		"all":     {Binding{}, ActionTurn, true},
		"removed": {Binding{RemovedAt: now}, ActionTurn, false},
	} {
		if got := c.b.Allows(c.action); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestConnectionAttached(t *testing.T) {
	c := Connection{Runner: "run_1", ExpiresAt: now}
	if c.Attached(now) || !c.Attached(now.Add(-1)) || (Connection{ExpiresAt: now}).Attached(now.Add(-1)) {
		t.Error("a connection is attached exactly until its row expires")
	}
}

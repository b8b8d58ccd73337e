package execution

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func offered() Attempt {
	return Attempt{ID: "att_x", State: AttemptOffered, Runner: "run_1", OfferedAt: now}
}

func fence(n uint32) protocol.Fence {
	f, err := protocol.NewFence(1, n)
	if err != nil {
		panic(err)
	}
	return f
}

// TestFirstClaimWins: the first claim gets the attempt, the same one again gets
// the same answer, everybody else a conflict. INV-14.
func TestFirstClaimWins(t *testing.T) {
	first := Claim{"run_1", "boot-1", fence(1)}
	a, repeat, err := offered().Claim(first, now)
	if err != nil || repeat || a.State != AttemptClaimed || a.Fence != fence(1) || a.BootNonce != "boot-1" || a.ClaimedAt != now || a.RenewedAt != now {
		t.Fatalf("first: %+v, %t, %v", a, repeat, err)
	}
	later := now.Add(time.Second)
	for _, state := range []AttemptState{AttemptClaimed, AttemptRunning, AttemptSuspect} {
		held := a
		held.State = state
		again, repeat, err := held.Claim(Claim{"run_1", "boot-1", fence(9)}, later)
		if err != nil || !repeat || again.Fence != fence(1) || again.ClaimedAt != now || again.State != state {
			t.Errorf("again while %s: %+v, %t, %v", state, again, repeat, err)
		}
		for name, other := range map[string]Claim{
			"another boot":   {"run_1", "boot-2", fence(9)},
			"another runner": {"run_2", "boot-1", fence(9)},
		} {
			kept, repeat, err := held.Claim(other, later)
			if protocol.CodeOf(err) != protocol.CodeConflict || repeat || kept.BootNonce != "boot-1" || kept.Fence != fence(1) {
				t.Errorf("%s while %s: %+v, %t, %v", name, state, kept, repeat, err)
			}
		}
	}
}

func TestClaimRefusals(t *testing.T) {
	good := Claim{"run_1", "boot-1", fence(2)}
	if _, _, err := offered().Claim(good, now); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Attempt)
		claim  Claim
		code   protocol.Code
	}{
		"no nonce":          {func(*Attempt) {}, Claim{"run_1", "", fence(2)}, protocol.CodeInvalidArgument},
		"no runner":         {func(*Attempt) {}, Claim{"", "boot-1", fence(2)}, protocol.CodeInvalidArgument},
		"ended":             {func(a *Attempt) { a.State = AttemptCancelled }, good, protocol.CodeFailedPrecondition},
		"not offered":       {func(a *Attempt) { a.State = AttemptQueued }, good, protocol.CodeConflict},
		"offered elsewhere": {func(a *Attempt) { a.Runner = "run_2" }, good, protocol.CodeConflict},
		"stale fence":       {func(a *Attempt) { a.Fence = fence(2) }, good, protocol.CodeStaleFence},
	} {
		a := offered()
		c.change(&a)
		if kept, _, err := a.Claim(c.claim, now); protocol.CodeOf(err) != c.code || kept.BootNonce != "" {
			t.Errorf("%s: %+v, %v", name, kept, err)
		}
	}
}

// TestCheckFence: only the current fence of a held attempt advances it. INV-3.
func TestCheckFence(t *testing.T) {
	a, _, err := offered().Claim(Claim{"run_1", "boot-1", fence(5)}, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.CheckFence(fence(5)); err != nil {
		t.Errorf("the current fence: %v", err)
	}
	for _, f := range []protocol.Fence{0, fence(4), fence(6)} {
		if err := a.CheckFence(f); protocol.CodeOf(err) != protocol.CodeStaleFence {
			t.Errorf("fence %s: %v", f, err)
		}
	}
	ended, err := a.End(AttemptInterrupt, "lease_expired", "The machine did not come back.", now)
	if err != nil || ended.Reason != "lease_expired" || ended.EndedAt != now {
		t.Fatalf("ended: %+v, %v", ended, err)
	}
	if err := ended.CheckFence(fence(5)); protocol.CodeOf(err) != protocol.CodeStaleFence {
		t.Errorf("a late result after the end: %v", err)
	}
	if err := (Attempt{State: AttemptQueued}).CheckFence(0); protocol.CodeOf(err) != protocol.CodeStaleFence {
		t.Errorf("no fence at all: %v", err)
	}
}

func TestOfferAndWithdraw(t *testing.T) {
	a := Attempt{ID: "att_x", State: AttemptQueued, DeferReason: "laptop: offline"}
	a, err := a.Offer("run_1", now)
	if err != nil || a.Runner != "run_1" || a.OfferedAt != now || a.DeferReason != "" {
		t.Fatalf("offered: %+v, %v", a, err)
	}
	if kept, err := a.Offer("run_2", now); err == nil || kept.Runner != "run_1" {
		t.Errorf("offered twice: %+v, %v", kept, err)
	}
	back, err := a.Step(AttemptWithdraw, now)
	if err != nil || back.Runner != "" || !back.OfferedAt.IsZero() || back.State != AttemptQueued {
		t.Errorf("withdrawn: %+v, %v", back, err)
	}
	if kept, err := a.End(AttemptWithdraw, "x", "", now); err == nil || kept.State != AttemptOffered {
		t.Errorf("an end by a step that ends nothing: %+v, %v", kept, err)
	}
}

// TestBeginTwice: Started is told again after a lapse; the first instant stays.
func TestBeginTwice(t *testing.T) {
	a := Attempt{ID: "att_x", State: AttemptClaimed}
	for i, ev := range []AttemptEvent{AttemptBegin, AttemptLapse, AttemptRenew, AttemptBegin, AttemptLapse, AttemptBegin} {
		next, err := a.Step(ev, now.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatalf("%s: %v", ev, err)
		}
		a = next
	}
	if a.StartedAt != now || a.RenewedAt != now.Add(2*time.Second) || a.State != AttemptRunning {
		t.Errorf("%+v", a)
	}
}

package budget

import (
	"math"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

const slice = protocol.SliceID("slc_01jdv3k8x0q6v9w2m4t7y5z1ab")

func ledger() *Ledger {
	start := time.Now()
	return New("boot-1", func() time.Duration { return time.Since(start) })
}

// INV-19: reserved plus spent never exceeds the ceiling, whatever runs at once.
func TestReserveNeverExceedsTheCeiling(t *testing.T) {
	l := ledger()
	s := Slice{ID: slice, Boot: "boot-1", Ceiling: 1000}
	var wg sync.WaitGroup
	holds := make(chan *Hold, 100)
	for range 100 {
		wg.Go(func() {
			h, err := l.Reserve(s, 30)
			if err == nil {
				holds <- h
			} else if protocol.CodeOf(err) != protocol.CodeBudgetExhausted {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(holds) != 33 {
		t.Fatalf("%d reservations of 30 fit in 1000", len(holds))
	}
	if u := l.Usage(slice)[0]; u.Drawn != 990 || u.Open != 33 {
		t.Errorf("%+v", u)
	}
	// Settling below the reservation returns the rest.
	h := <-holds
	h.Settle(10, Tokens{5, 6})
	h.Settle(10, Tokens{5, 6}) // once only
	if u := l.Usage(slice)[0]; u.Drawn != 970 || u.Open != 32 || u.Input != 5 || u.Output != 6 {
		t.Errorf("%+v", u)
	}
	if _, err := l.Reserve(s, 30); err != nil {
		t.Errorf("the rest did not come back: %v", err)
	}
	if _, err := l.Reserve(s, 1); protocol.CodeOf(err) != protocol.CodeBudgetExhausted {
		t.Errorf("beyond the ceiling: %v", err)
	}
	// A top-up raises the cumulative ceiling.
	s.Ceiling = 1100
	if _, err := l.Reserve(s, 100); err != nil {
		t.Errorf("after a top-up: %v", err)
	}
}

func TestSliceOfAnotherBootIsSpent(t *testing.T) {
	l := ledger()
	for name, c := range map[string]struct {
		slice Slice
		want  protocol.Code
	}{
		"other boot": {Slice{ID: slice, Boot: "boot-0", Ceiling: 1000}, protocol.CodeUnavailable}, // the next slice will do
		"no slice":   {Slice{Boot: "boot-1", Ceiling: 1000}, protocol.CodeBudgetExhausted},
	} {
		if _, err := l.Reserve(c.slice, 1); protocol.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		} else if of := protocol.DetailOf(err) == protocol.DetailSliceBoot; of != (name == "other boot") {
			t.Errorf("%s has the detail %q", name, protocol.DetailOf(err))
		}
	}
	if _, err := l.Reserve(Slice{ID: slice, Boot: "boot-1", Ceiling: 1000}, 1); err != nil {
		t.Errorf("its own slice: %v", err)
	}
}

func TestClosedSlice(t *testing.T) {
	var now time.Duration
	l := New("b", func() time.Duration { return now })
	s := Slice{ID: slice, Boot: "b", Ceiling: 100}
	done, err := l.Reserve(s, 10)
	if err != nil {
		t.Fatal(err)
	}
	done.Settle(7, Tokens{1, 2})
	late, err := l.Reserve(s, 20)
	if err != nil {
		t.Fatal(err)
	}
	want := Usage{Slice: slice, Drawn: 27, Reserved: 20, Largest: 20, Tokens: Tokens{1, 2}, Calls: 2, Open: 1}
	for range 2 { // a repeated close answers the same
		if got := l.Close(slice)[0]; got != want {
			t.Errorf("close: %+v, want %+v", got, want)
		}
	}
	// INV-19: what was open when it was closed still settles, and then it is final.
	late.Settle(1, Tokens{3, 0})
	want = Usage{Slice: slice, Drawn: 8, Largest: 20, Tokens: Tokens{4, 2}, Calls: 2}
	for _, got := range []Usage{l.Usage(slice)[0], l.Close(slice)[0]} {
		if got != want {
			t.Errorf("usage after close: %+v, want %+v", got, want)
		}
	}
	if _, err := l.Reserve(s, 1); protocol.CodeOf(err) != protocol.CodeBudgetExhausted {
		t.Errorf("a closed slice was drawn: %v", err)
	}
	now = tombTTL + time.Second
	l.Close("slc_01jdv3k8x0q6v9w2m4t7y5z1ac")
	if len(l.closed) != 1 {
		t.Errorf("%d tombs are kept", len(l.closed))
	}
}

func TestCost(t *testing.T) {
	p := Price{InputPerMTok: 2_500_000, OutputPerMTok: 10_000_000, Known: true}
	for _, tc := range []struct {
		t    Tokens
		want int64
	}{{Tokens{0, 0}, 0}, {Tokens{1_000_000, 0}, 2_500_000}, {Tokens{1, 0}, 3}, {Tokens{2, 1}, 15}} {
		got, err := p.Cost(tc.t)
		if err != nil || got != tc.want {
			t.Errorf("%+v costs %d (%v), want %d", tc.t, got, err, tc.want)
		}
	}
	if _, err := (Price{}).Cost(Tokens{1, 1}); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("an unknown price: %v", err)
	}
	if c, err := (Price{Known: true}).Cost(Tokens{1, 1}); c != 0 || err != nil {
		t.Errorf("a free model: %d %v", c, err)
	}
	if _, err := p.Cost(Tokens{math.MaxInt64, 1}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("overflow: %v", err)
	}
}

func TestCapsHoldOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spend.json")
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	open := func() *Spend {
		s, err := NewSpend(Caps{PerHour: 100, PerTenantHour: map[string]int64{"a": 60, "*": Unlimited}}, path, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	spend := func(s *Spend, tenant string, reserve, cost int64) error {
		h, err := s.Reserve(tenant, reserve)
		if err != nil {
			return err
		}
		return h.Settle(cost)
	}
	if err := spend(open(), "a", 60, 50); err != nil {
		t.Fatal(err)
	}
	s := open()
	for name, err := range map[string]error{"tenant": spend(s, "a", 11, 0), "total": spend(s, "b", 51, 0)} {
		var e *protocol.Error
		if e, _ = err.(*protocol.Error); e == nil || e.Code != protocol.CodeRateLimited || e.RetryAfter == 0 {
			t.Errorf("%s cap: %v", name, err)
		}
	}
	if err := spend(s, "a", 10, 0); err != nil {
		t.Errorf("within the tenant's cap: %v", err)
	}
	if err := spend(s, "b", 50, 0); err != nil {
		t.Errorf("within the total: %v", err)
	}
	now = now.Add(61 * time.Minute)
	if err := spend(s, "a", 60, 60); err != nil {
		t.Errorf("an hour later: %v", err)
	}
}

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// tries is how often a call of the model may break: six times is once too often.
const tries = 5

// INV-7, INV-19: a broker that is killed in the middle of a call costs the turn one
// try, and not a second one for the slice that was cut for the start before. What
// was in flight stays counted, and all of a slice of which the broker knows nothing
// any more.
func TestBrokerIsKilledInEveryCall(t *testing.T) {
	for name, c := range map[string]struct{ kills, fallen int }{
		"killed":                  {kills: tries},
		"its machine falls":       {kills: tries, fallen: 1},
		"killed once too often":   {kills: tries + 1},
		"its machine falls twice": {kills: tries, fallen: 2},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				killed := 0
				w.Broker.Say(func(ctx context.Context, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
					if killed == c.kills {
						return et.Script(et.Text("done"))(ctx, req)
					}
					killed++
					w.Broker.Restart(fmt.Sprint("start-", killed), killed <= c.fallen)
					return nil, protocol.Errorf(protocol.CodeUnavailable, "the connection broke")
				})
				turn := w.Submit(w.Session("assistant"), "hello")
				settleAll(t, w, turn.ID)
				if c.kills > tries {
					wantState(t, w, turn.ID, session.Failed, "model_unavailable")
				} else {
					wantState(t, w, turn.ID, session.Completed, "")
				}
				refused := 0
				for _, code := range w.Broker.Refused() {
					if code != string(protocol.CodeUnavailable) {
						t.Errorf("the broker refused with %s", code)
					}
					refused++
				}
				if refused == 0 {
					t.Error("no call met the slice of another start: the test proves nothing")
				}
				slicesOfKills(t, w, turn.ID, c.kills, c.fallen)
			})
		})
	}
}

// slicesOfKills holds the slices of a turn against what its calls drew.
func slicesOfKills(t *testing.T, w *et.World, id protocol.TurnID, kills, fallen int) {
	t.Helper()
	w.Sleep(5 * time.Second)
	all, _ := slicesOf(t, w, id)
	var want int64
	for i, s := range all {
		drawn := int64(10) // each call, broken or answered
		switch {
		case i < fallen:
			drawn = s.CeilingMicroUSD
		case i == kills && kills > tries:
			drawn = 0 // nobody called any more
		}
		if s.DrawnMicroUSD != drawn || s.ClosedAt.IsZero() {
			t.Errorf("slice %d of %s: %+v, want %d drawn and closed", i, s.BrokerBoot, s, drawn)
		}
		want += drawn
	}
	if got := w.Turn(id).CostMicroUSD; got != want {
		t.Errorf("the turn cost %d, its slices %d", got, want)
	}
	if n := len(all); n != kills+1 && !(kills > tries && n == kills) {
		t.Errorf("%d slices for %d starts: %+v", n, kills+1, all)
	}
}

// INV-19: a broker that calls every slice one of another start, whatever is cut for
// it, is one that does not answer: the turn ends by the rule of tries, and has spent
// nothing. Once it takes a slice, the next turn runs.
func TestEverySliceIsOfAnotherBoot(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		floors, starts, forever := w.Broker.Floors, 0, true
		w.Broker.Floors = func() []policy.Floor {
			if forever {
				starts++
				w.Broker.Restart(fmt.Sprint("start-", starts), false)
			}
			return floors()
		}
		w.Broker.Say(et.Script(et.Text("done")))
		s := w.Session("assistant")
		turn := w.Submit(s, "hello")
		settleAll(t, w, turn.ID)
		wantState(t, w, turn.ID, session.Failed, "model_unavailable")
		if n := len(w.Broker.Refused()); n <= tries+1 || n > 2*(tries+1) {
			t.Errorf("the broker was asked %d times", n)
		}
		w.Sleep(5 * time.Second)
		all, sum := slicesOf(t, w, turn.ID)
		if sum != 0 || w.Turn(turn.ID).CostMicroUSD != 0 {
			t.Errorf("%d spent of %+v", sum, all)
		}
		forever = false
		next := w.Submit(s, "again")
		settleAll(t, w, next.ID)
		wantState(t, w, next.ID, session.Completed, "")
	})
}

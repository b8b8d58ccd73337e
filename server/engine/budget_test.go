package engine_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// coderWith stores the coder with a budget.
func coderWith(t *testing.T, w *et.World, usd string) {
	t.Helper()
	coderHas(t, w, "limits { max_cost_usd = "+usd+" }")
}

// coderHas stores the coder with one block more.
func coderHas(t *testing.T, w *et.World, block string) {
	t.Helper()
	at := strings.LastIndex(strings.TrimSpace(et.Coder), "}")
	src := strings.TrimSpace(et.Coder)[:at] + block + "\n}\n"
	if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "c.hcl", Source: []byte(src)}); err != nil {
		t.Fatal(err)
	}
}

// slicesOf a turn, and what they reserve and spent together. INV-19.
func slicesOf(t *testing.T, w *et.World, id protocol.TurnID) (all []policy.Slice, sum int64) {
	t.Helper()
	err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		all, err = tx.SlicesOfTurn(id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.ClosedAt.IsZero() {
			sum += max(s.CeilingMicroUSD, s.DrawnMicroUSD)
		} else {
			sum += s.DrawnMicroUSD
		}
	}
	return all, sum
}

// INV-19: a runner-placed turn has an eighth of its budget at hand, which is
// topped up while it draws, and at once when its runner says that it is short,
// until the slice is whole.
func TestRunnerTurnIsToppedUp(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		coderWith(t, w, "0.0008")
		turn, h := begun(t, w, r)
		r.Renew()
		first := h.Terms.Slice
		if first.GetCeilingMicroUsd() != 100 || first.GetWhole() {
			t.Fatalf("it begins with %v", first)
		}
		w.Broker.Draw(protocol.SliceID(first.Id), 70)
		w.Sleep(3 * time.Second)
		r.Renew()
		if got := h.Terms.Slice; got.GetId() != first.Id || got.GetCeilingMicroUsd() != 70+140 {
			t.Errorf("at low water: %v", got)
		}

		// A call of 150 finds 140. The renewal that says so brings nothing yet.
		w.Broker.Refuse(protocol.SliceID(first.Id), 150)
		h.Short = true
		before := time.Now()
		r.Renew()
		w.Settle()
		r.Renew()
		if got := h.Terms.Slice; got.GetCeilingMicroUsd() != 70+300 || got.GetWhole() {
			t.Errorf("when it is short: %v", got)
		}
		if waited := time.Since(before); waited > 100*time.Millisecond {
			t.Errorf("the top-up took %s", waited)
		}

		w.Broker.Draw(protocol.SliceID(first.Id), 290)
		r.Renew()
		w.Settle()
		r.Renew()
		if got := h.Terms.Slice; got.GetCeilingMicroUsd() != 800 || !got.GetWhole() {
			t.Errorf("the end of the budget: %v", got)
		}
		if all, sum := slicesOf(t, w, turn.ID); len(all) != 1 || sum > 800 {
			t.Errorf("reserved %d in %+v", sum, all)
		}
	})
}

// INV-19: a broker that is killed again and again costs a runner-placed turn what
// it can have spent, and no more, while it keeps its notes; after the fall of its
// machine the slice counts, and not the budget.
func TestBrokerIsKilledUnderARunnerTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		coderWith(t, w, "0.0008")
		turn, h := begun(t, w, r)
		r.Renew()
		old := h.Terms.Slice.Id
		for i, boot := range []string{"boot-2", "boot-3", "boot-4", "boot-5"} {
			w.Broker.Draw(protocol.SliceID(old), 10)
			w.Broker.Restart(boot, i == 3)
			h.Short = true
			r.Renew()
			w.Settle()
			r.Renew()
			h.Short = false
			now := h.Terms.Slice
			if now.GetId() == old || now.GetCeilingMicroUsd() != 100 {
				t.Fatalf("after %s the slice is %v", boot, now)
			}
			old = now.GetId()
			wantState(t, w, turn.ID, session.RunningModel, "")
		}
		all, sum := slicesOf(t, w, turn.ID)
		if len(all) != 5 || sum != 10+10+10+100+100 {
			t.Errorf("reserved and spent %d in %+v", sum, all)
		}
		h.Finish("done", "")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

// INV-3: what a runner says of a slice that was replaced meanwhile changes nothing
// but what its next renewal brings.
func TestShortOfAnEarlierSlice(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		coderWith(t, w, "0.0008")
		turn, h := begun(t, w, r)
		w.Broker.Restart("boot-2", false)
		w.Sleep(3 * time.Second) // the usage tick replaced it
		all, _ := slicesOf(t, w, turn.ID)
		h.Short = true
		r.Renew()
		w.Settle()
		again, _ := slicesOf(t, w, turn.ID)
		if len(all) != 2 || len(again) != 2 || h.Terms.Slice.GetId() != all[1].ID.String() {
			t.Errorf("slices %+v, then %+v; the lease has %v", all, again, h.Terms.Slice)
		}
	})
}

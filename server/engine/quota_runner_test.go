package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// heldByRunner is what explain says of the only machine.
func heldByRunner(t *testing.T, w *et.World, turn session.Turn) string {
	t.Helper()
	x := whyWaits(t, w, turn)
	if len(x.Runners) != 1 || x.Runners[0].Eligible || !slices.Contains(x.Remedies, "laptop: bivouac quota") {
		t.Errorf("explained as %+v", x)
	}
	return x.WaitingFor
}

func usesOf(t *testing.T, w *et.World) (out []engine.Use) {
	t.Helper()
	uses, err := w.Engine.QuotasOf(ctx(), w.Me(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uses {
		if u.Scope == policy.ScopeRunner {
			out = append(out, u)
		}
	}
	return out
}

// The admin bounds how many turns a machine has at once: what is beyond waits though
// there is a slot, explain says whose bound it is, and it goes on when there is room.
// Another machine is not touched by a bound with a name. INV-10.
func TestTurnsOfAMachineAreBounded(t *testing.T) {
	named := et.WithQuotas(policy.Quotas{Named: map[string]map[string]policy.Quota{policy.ScopeRunner: {"local/laptop": {MaxActiveTurns: 1}}}})
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Facts.Slots = 4
		r.Connect()
		_, h := begun(t, w, r)
		second := w.Submit(w.Session("coder"), "and this")
		w.Settle()
		if why := heldByRunner(t, w, second); !strings.Contains(why, "its quota (local/laptop): 1 turns are there, at most 1 may be") {
			t.Errorf("it waits for %q", why)
		}
		if got := usesOf(t, w); len(got) != 1 || got[0].Name != "local/laptop" || got[0].Consumed.Active != 1 || got[0].Quota.MaxActiveTurns != 1 {
			t.Errorf("shown: %+v", got)
		}
		other := w.Join("desktop", "files.read")
		w.Until("the other machine to take it", func() bool { return other.Whole() != nil })
		other.Whole().Finish("done", "")
		w.Settle()
		wantState(t, w, second.ID, session.Completed, "")
		if _, err := w.Engine.RevokeRunner(ctx(), w.Me(), other.ID, ""); err != nil {
			t.Fatal(err)
		}
		third := w.Submit(w.Session("coder"), "and that")
		w.Settle()
		h.Finish("done", "")
		w.Until("the machine to take it", func() bool { return w.Turn(third.ID).State == session.RunningModel })
		r.Turn().Finish("done", "")
		w.Settle()
		wantState(t, w, third.ID, session.Completed, "")
	}, named)
}

// The owner's day: turns that used it up keep the next one waiting, over a restart of
// the server; device actions use no tokens and go on.
func TestDayOfAMachineIsBounded(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "r", Alias: "read_file", Arguments: `{"path":"home/todo.txt"}`}), et.Text("done")))
		r.Facts.Quota = &runnerv1.RunnerQuota{MaxTokensPerDay: 10}
		r.Connect()
		_, h := begun(t, w, r)
		h.Finish("done", "") // ten tokens
		w.Settle()
		next := w.Submit(w.Session("coder"), "and this")
		w.Settle()
		if why := heldByRunner(t, w, next); !strings.Contains(why, "10 tokens were used today, at most 10 may be") {
			t.Errorf("it waits for %q", why)
		}
		w.Restart()
		r.Connect()
		w.Settle()
		if got := usesOf(t, w); len(got) != 1 || got[0].Consumed.TokensToday != 10 || got[0].Quota.MaxTokensPerDay != 10 {
			t.Errorf("shown: %+v", got)
		}
		reads := w.Submit(w.Session("assistant"), "read it")
		w.Settle()
		wantState(t, w, reads.ID, session.Completed, "")
		if r.Whole() != nil {
			t.Error("a turn was placed beyond the day")
		}
		r.Facts.Quota.MaxTokensPerDay = 11 // the owner admits more
		r.Connect()
		w.Until("the machine to take it", func() bool { return r.Whole() != nil })
		r.Turn().Finish("done", "")
		w.Settle()
		if err := w.Store.Update(ctx(), store.AsLoop("sweep"), func(tx *store.Tx) error { _, err := tx.DropUsage(time.Now().Add(48 * time.Hour)); return err }); err != nil {
			t.Fatal(err)
		}
		if got := usesOf(t, w); len(got) != 1 || got[0].Consumed.TokensToday != 0 {
			t.Errorf("forgotten days: %+v", got)
		}
	})
}

// What the owner admits narrows what the admin set, and never widens it. INV-10.
func TestOwnerNarrowsTheQuotaOfAMachine(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		for owner, want := range map[int32]int{0: 3, 2: 2, 9: 3} {
			r.Facts.Quota = &runnerv1.RunnerQuota{MaxActiveActions: owner}
			r.Connect()
			if got := usesOf(t, w); len(got) != 1 || got[0].Quota.MaxActiveActions != want {
				t.Errorf("the owner says %d: %+v", owner, got)
			}
		}
	}, quotas(policy.ScopeRunner, policy.Quota{MaxActiveActions: 3}))
}

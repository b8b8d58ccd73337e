package engine_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// used of a turn.
type used struct{ input, output, cost, calls int64 }

// wantUsed holds a turn against what the broker counted of its slices, and against
// the one event that says so after its end. INV-19.
func wantUsed(t *testing.T, w *et.World, id protocol.TurnID, want used) {
	t.Helper()
	turn := w.Turn(id)
	if got := (used{turn.InputTokens, turn.OutputTokens, turn.CostMicroUSD, turn.ModelCalls}); got != want {
		t.Errorf("turn %s (%s) used %+v, want %+v", id, turn.State, got, want)
	}
	if turn.UsageSettledAt.IsZero() {
		t.Errorf("what turn %s used is not settled", id)
	}
	ended, told := false, 0
	for _, e := range w.Events(turn.Session) {
		if e.Turn != id {
			continue
		}
		ended = ended || e.Type == session.TurnEnded
		if e.Type != session.UsageSettled {
			continue
		}
		if told++; !ended {
			t.Error("it was settled before it ended")
		}
		number := func(key string) int64 { n, _ := strconv.ParseInt(e.Data[key], 10, 64); return n }
		got := used{number("input_tokens"), number("output_tokens"), number("cost_micro_usd"), number("model_calls")}
		if got != want {
			t.Errorf("the event says %v, want %+v", e.Data, want)
		}
	}
	if told != 1 {
		t.Errorf("it was told %d times", told)
	}
}

// INV-19: a model call that was cancelled while it streamed was paid for. Until
// the broker has settled it, the turn says that its usage is not final.
func TestCancelledWhileStreaming(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		var turn session.Turn
		streamed := false
		w.Broker.Say(func(context.Context, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			streamed = true
			got, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID)
			if err != nil || got.State != session.Cancelled || !got.UsageSettledAt.IsZero() {
				t.Errorf("cancelled: %s, settled at %s, %v", got.State, got.UsageSettledAt, err)
			}
			return nil, protocol.Errorf(protocol.CodeCancelled, "nobody waits any more")
		})
		turn = w.Submit(w.Session("assistant"), "tell me all")
		w.Until("it streams", func() bool { return streamed })
		w.Sleep(3 * time.Second)
		wantUsed(t, w, turn.ID, used{input: 7, cost: 10, calls: 1})

		// Its twin is answered, and used what its loop counted.
		w.Broker.Say(et.Script(et.Text("done")))
		twin := w.Submit(w.Session("assistant"), "be short")
		w.Settle()
		wantState(t, w, twin.ID, session.Completed, "")
		w.Sleep(3 * time.Second)
		wantUsed(t, w, twin.ID, used{input: 7, output: 3, cost: 10, calls: 1})
	})
}

// INV-19: an attempt that was interrupted spent what the broker says. The next one
// begins with that, and the turn shows the sum.
func TestInterruptedAttemptIsPaid(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		if h.Spec().Settled != nil {
			t.Errorf("the first attempt begins with %v", h.Spec().Settled)
		}
		w.Broker.Count(w.Turn(turn.ID).Slice, 1000, 20, 300, 3)
		w.Sleep(3 * time.Second) // the usage tick has looked
		if got := w.Turn(turn.ID); got.InputTokens != 1000 || got.CostMicroUSD != 300 {
			t.Errorf("while it runs it shows %d tokens in, %d", got.InputTokens, got.CostMicroUSD)
		}
		interrupt(h)
		w.Settle()
		next := r.Turn()
		if next == nil || next == h {
			t.Fatal("no second attempt was claimed")
		}
		if s := next.Spec().Settled; s.GetUsage().GetCostMicroUsd() != 300 || s.GetUsage().GetInputTokens() != 1000 || s.GetModelCalls() != 3 {
			t.Errorf("the second attempt begins with %v", s)
		}
		next.Begin()
		w.Broker.Count(w.Turn(turn.ID).Slice, 74, 7, 30, 1)
		next.Finish("done", "")
		w.Sleep(3 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
		wantUsed(t, w, turn.ID, used{1074, 27, 330, 4})
	})
}

// INV-13, INV-19: work that was revoked in the middle was paid for all the same.
func TestRevokedTurnIsPaid(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "coder"})
		if err != nil {
			t.Fatal(err)
		}
		turn, _ := begun(t, w, r)
		w.Broker.Count(w.Turn(turn.ID).Slice, 500, 5, 40, 2)
		if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "lost"); err != nil {
			t.Fatal(err)
		}
		wantState(t, w, turn.ID, session.Failed, "grant_revoked")
		w.Sleep(3 * time.Second)
		wantUsed(t, w, turn.ID, used{500, 5, 40, 2})
	})
}

// INV-19: over a restart of the broker its notes say what the turn used; without
// them all that was at hand counts.
func TestUsageOverARestartOfTheBroker(t *testing.T) {
	for _, c := range []struct {
		name   string
		forget bool
		want   used
	}{
		{"it kept its notes", false, used{500, 5, 40, 2}},
		{"its machine fell", true, used{cost: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				coderWith(t, w, "0.0008")
				turn, _ := begun(t, w, r)
				w.Broker.Count(w.Turn(turn.ID).Slice, 500, 5, 40, 2)
				w.Broker.Restart("boot-2", c.forget)
				if _, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil {
					t.Fatal(err)
				}
				w.Sleep(3 * time.Second)
				wantUsed(t, w, turn.ID, c.want)
			})
		})
	}
}

// INV-19: a slice with calls that never settle is closed after a while, and what
// they reserved is spent.
func TestCallThatNeverSettles(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, _ := begun(t, w, r)
		w.Broker.Open(w.Turn(turn.ID).Slice)
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil {
			t.Fatal(err)
		}
		w.Sleep(20 * time.Second)
		if got := w.Turn(turn.ID); !got.UsageSettledAt.IsZero() {
			t.Errorf("it is settled at %s over an open call", got.UsageSettledAt)
		}
		w.Sleep(20 * time.Second)
		wantUsed(t, w, turn.ID, used{cost: 10, calls: 1})
	})
}

// interrupt ends an attempt as a supervisor does whose worker was killed.
func interrupt(h *et.Held) {
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{
		Status: protocol.ResultFailed, Code: protocol.ResultInterrupted, Message: "the worker is gone"}}})
}

package engine_test

import (
	"slices"
	"testing"
	"time"

	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// A turn can be cancelled in every state that is not terminal, and what works
// for it ends.
func TestCancelInEveryState(t *testing.T) {
	read := et.Call{ID: "r", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}
	for _, c := range []struct {
		name  string
		agent string
		first et.Answer
		prep  func(w *et.World, r *et.Runner)
		state session.TurnState
	}{
		{"queued", "assistant", et.Text(""), func(w *et.World, _ *et.Runner) { w.Broker.SetDown(true); w.Sleep(40 * time.Second) }, session.Queued},
		{"received", "coder", et.Text(""), func(w *et.World, r *et.Runner) { r.Claims = false }, session.Received},
		{"running the model here", "assistant", et.Text("x"), nil, session.RunningModel},
		{"running on a runner", "coder", et.Text(""), nil, session.RunningModel},
		{"waiting for the dispatch", "assistant", et.Calls(read), nil, session.WaitingAction},
		{"running an action", "assistant", et.Calls(read), func(w *et.World, r *et.Runner) { r.Reports = false }, session.RunningAction},
		{"waiting for a person", "assistant", et.Calls(write), nil, session.WaitingApproval},
		{"reconciling", "assistant", et.Calls(et.Call{ID: "n", Alias: "note", Arguments: `{"text":"x"}`}), func(w *et.World, _ *et.Runner) { w.Broker.LoseAnswers("http:note", 1) }, session.WaitingReconciliation},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				w.Broker.Say(et.Script(c.first))
				if c.prep != nil {
					c.prep(w, r)
				}
				s := w.Session(c.agent)
				turn := w.Submit(s, "work")
				w.Until(string(c.state), func() bool { return w.Turn(turn.ID).State == c.state })
				got, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID)
				if err != nil || got.State != session.Cancelled {
					t.Fatalf("cancel: %s, %v", got.State, err)
				}
				if again, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil || again.State != session.Cancelled {
					t.Errorf("again: %s, %v", again.State, err)
				}
				r.Reports = true
				w.Settle()
				w.Sleep(2 * time.Minute)
				wantState(t, w, turn.ID, session.Cancelled, "cancelled")
				for _, a := range w.Actions(turn.ID) {
					if !a.State.Terminal() {
						t.Errorf("action %s is still %s", a.Tool, a.State)
					}
				}
				for _, a := range w.Approvals(turn.ID) {
					if !a.State.Terminal() {
						t.Errorf("approval is still %s", a.State)
					}
				}
				if c.state == session.RunningModel && c.agent == "coder" && len(r.Stopped) != 1 {
					t.Errorf("the runner was told to stop %v", r.Stopped)
				}
				if n := slices.Index(w.Types(s.ID), session.TurnEnded); n < 0 {
					t.Error("no turn.ended")
				}
			})
		})
	}
}

// The session's next turn runs after a cancel.
func TestNextTurnRunsAfterCancel(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("next")))
		s := w.Session("assistant")
		first, second := w.Submit(s, "first"), w.Submit(s, "second")
		w.Settle()
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), first.ID); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if got := wantState(t, w, second.ID, session.Completed, ""); got.Answer != "next" {
			t.Errorf("answer %q", got.Answer)
		}
	})
}

package engine_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// One call cancels the active turn and queues its prompt; what waits keeps its
// place, and the same message again cancels nothing more.
func TestInsteadCancelsAndQueues(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("second"), et.Calls(write), et.Text("never")))
		s := w.Session("assistant")
		first, second := w.Submit(s, "first"), w.Submit(s, "second")
		w.Settle()
		wantState(t, w, first.ID, session.WaitingApproval, "")
		p := engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "third", Instead: true}
		got, err := submit(w, w.Me(), p)
		if err != nil || got.Replaced != first.ID || got.Position != 2 || got.Turn.State != session.Queued {
			t.Fatalf("instead: %+v, %v", got, err)
		}
		wantState(t, w, first.ID, session.Cancelled, "cancelled")
		w.Settle()
		wantState(t, w, second.ID, session.Completed, "") // it was there before
		wantState(t, w, got.Turn.ID, session.WaitingApproval, "")

		again, err := submit(w, w.Me(), p)
		if err != nil || !again.Duplicate || again.Turn.ID != got.Turn.ID || again.Replaced != first.ID {
			t.Errorf("again: %+v, %v", again, err)
		}
		w.Settle()
		wantState(t, w, got.Turn.ID, session.WaitingApproval, "")
		p.Instead = false
		_, err = submit(w, w.Me(), p)
		wantCode(t, "the same id to another end", err, protocol.CodeConflict)

		// A prompt without it never cancels.
		behind := w.Submit(s, "fourth")
		w.Settle()
		wantState(t, w, got.Turn.ID, session.WaitingApproval, "")
		wantState(t, w, behind.ID, session.Queued, "")
		if len(r.Writes) != 0 {
			t.Errorf("writes %v", r.Writes)
		}
	})
}

// A refused prompt cancels nothing: the two are one transaction.
func TestInsteadIsOneTransaction(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write)))
		s := w.Session("assistant")
		active := w.Submit(s, "work")
		w.Settle()
		_, friend := w.Principal("local", "bob", false)
		_, err := submit(w, et.Caller(friend), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p", Instead: true})
		wantCode(t, "another's session", err, protocol.CodeNotFound)
		_, err = submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p", Instead: true, WorkspaceDigest: "sha256:" + digestOf("x")})
		wantCode(t, "an absent workspace", err, protocol.CodeNotFound)
		for _, prompt := range []string{"a", "b", "c"} {
			w.Submit(s, prompt)
		}
		_, err = submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p", Instead: true})
		wantCode(t, "a full queue", err, protocol.CodeQueueFull)
		wantState(t, w, active.ID, session.WaitingApproval, "")

		idle := w.Session("assistant")
		got, err := submit(w, w.Me(), engine.NewTurn{Session: idle.ID, MessageID: "m", Prompt: "p", Instead: true})
		if err != nil || got.Replaced != "" || got.Position != 1 {
			t.Errorf("nothing is active: %+v, %v", got, err)
		}
		wantState(t, w, active.ID, session.WaitingApproval, "") // of another session
	})
}

// The attempt of a runner-placed turn is told to stop in the same step. INV-18.
func TestInsteadStopsTheRunner(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		s := w.Session("coder")
		active := w.Submit(s, "work")
		w.Until("it runs", func() bool { return w.Turn(active.ID).State == session.RunningModel })
		got, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "other work", Instead: true})
		if err != nil || got.Replaced != active.ID {
			t.Fatalf("instead: %+v, %v", got, err)
		}
		w.Until("the next one runs", func() bool { return w.Turn(got.Turn.ID).State == session.RunningModel })
		if len(r.Stopped) != 1 {
			t.Errorf("stopped %v", r.Stopped)
		}
	})
}

// The question of a cancelled turn ends with it; an answer that comes late is
// refused, and says why. INV-2, INV-6.
func TestLateApprovalOfACancelledTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write)))
		s := w.Session("assistant")
		turn := w.Submit(s, "write")
		w.Settle()
		a := w.Approvals(turn.ID)[0]
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil {
			t.Fatal(err)
		}
		for _, approve := range []bool{true, false} {
			_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: approve})
			wantCode(t, "a late decision", err, protocol.CodeConflict)
			if err == nil || !strings.Contains(err.Error(), "bivouac turns "+turn.ID.String()) {
				t.Errorf("it does not say why: %v", err)
			}
		}
		w.Settle()
		if len(r.Writes) != 0 || w.Approvals(turn.ID)[0].State != session.ApprovalCancelled {
			t.Errorf("writes %v, approval %s", r.Writes, w.Approvals(turn.ID)[0].State)
		}
		types := w.Types(s.ID)
		if n := slices.Index(types, session.ApprovalDecided); n < 0 || n > slices.Index(types, session.TurnEnded) {
			t.Errorf("the end of the question is not told before the turn's: %v", types)
		}
	})
}

// Two terminals decide one card at once: the same answer twice is harmless, of two
// answers one stands and the other is told whose it was.
func TestTwoTerminalsDecide(t *testing.T) {
	for _, second := range []bool{true, false} {
		inWorld(t, func(w *et.World, r *et.Runner) {
			w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
			turn := w.Submit(w.Session("assistant"), "write")
			w.Settle()
			a := w.Approvals(turn.ID)[0]
			var both sync.WaitGroup
			errs := make([]error, 2)
			for i, approve := range []bool{true, second} {
				both.Go(func() {
					_, errs[i] = w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: approve})
				})
			}
			both.Wait()
			refused := 0
			for _, err := range errs {
				if err != nil {
					refused++
					wantCode(t, "the other answer", err, protocol.CodeConflict)
					if !strings.Contains(err.Error(), "by ada at ") {
						t.Errorf("it does not say who: %v", err)
					}
				}
			}
			if want := map[bool]int{true: 0, false: 1}[second]; refused != want {
				t.Errorf("%d refused, want %d: %v", refused, want, errs)
			}
			w.Settle()
			wantState(t, w, turn.ID, session.Completed, "")
			if writes, approved := len(r.Writes), errs[0] == nil; writes != map[bool]int{true: 1, false: 0}[approved] {
				t.Errorf("%d writes, approved %v", writes, approved)
			}
		})
	}
}

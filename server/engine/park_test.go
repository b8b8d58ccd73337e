package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// asking is the transcript of a worker whose model makes calls: the first of them
// is in flight.
func asking(h *et.Held, calls ...et.Call) *runtimev1.LoopState {
	s, _ := loop.Step(loop.New(h.Spec()), loop.Begin{})
	s, _ = loop.Step(s, loop.ModelAnswered{Done: et.Calls(calls...).Done})
	return s
}

// asks begins a coding turn and has its model make the call that needs a person.
func asks(t *testing.T, w *et.World, r *et.Runner, call et.Call) (session.Turn, *et.Held) {
	t.Helper()
	turn, h := begun(t, w, r)
	h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: et.Calls(call).Done.Message}})
	h.AskParked(call)
	w.Settle()
	wantState(t, w, turn.ID, session.WaitingApproval, "")
	if n := len(r.Answers); n == 0 || !r.Answers[n-1].Park || r.Answers[n-1].CallId != call.ID {
		t.Fatalf("the runner was told %v", r.Answers)
	}
	return turn, h
}

// resumed is the transcript that a new attempt goes on from, with the result of
// the call that was decided.
func resumed(t *testing.T, h *et.Held) (*runtimev1.LoopState, *runtimev1.ToolResult) {
	t.Helper()
	s := h.Spec().Resume
	if s == nil {
		t.Fatal("the new attempt begins anew")
	}
	last := s.Messages[len(s.Messages)-1].Blocks[0].GetToolResult()
	if last == nil {
		t.Fatalf("the transcript ends with %v", s.Messages[len(s.Messages)-1])
	}
	return s, last
}

// INV-6, INV-7: a runner-placed turn that needs a person ends its attempt, waits
// holding nothing, and goes on in a new one after what was approved happened, once.
func TestRunnerTurnWaitsForAPerson(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := asks(t, w, r, write)
		patch := r.Upload(h, "so far")

		// The answer comes before the attempt has ended: it is not carried out yet.
		approve(t, w, turn.ID, true)
		w.Sleep(2 * time.Second)
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if len(r.Writes) != 0 {
			t.Fatal("it was written while the attempt that asked still runs")
		}
		first := h.ID
		h.Park(asking(h, write), patch)
		w.Settle()

		got := wantState(t, w, turn.ID, session.RunningModel, "")
		next := r.Turn()
		if next.ID == first || len(r.Writes) != 1 || r.Files["home/todo.txt"] != "new" {
			t.Fatalf("attempt %s after %s, writes %v", next.ID, first, r.Writes)
		}
		state, result := resumed(t, next)
		if result.Status != runtimev1.ResultStatus_RESULT_STATUS_OK || result.CallId != write.ID || state.Phase != runtimev1.Phase_PHASE_MODEL {
			t.Errorf("it goes on in %s with %v", state.Phase, result)
		}
		if next.Work.GetTurn().CheckpointPatchDigest != patch || next.Terms.Slice.GetId() == "" {
			t.Errorf("its files %q, its terms %v", next.Work.GetTurn().CheckpointPatchDigest, next.Terms)
		}
		if a := w.Approvals(turn.ID); len(a) != 1 || a[0].State != session.ApprovalConsumed {
			t.Errorf("approvals %+v", a)
		}
		if got.Attempts != 1 {
			t.Errorf("the turn counts %d tries", got.Attempts)
		}

		// A decision is no failure: the machine may still fall once.
		next.Begin()
		next.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "failed", Code: "interrupted"}}})
		w.Settle()
		third := r.Turn()
		if _, again := resumed(t, third); !proto.Equal(again, result) {
			t.Errorf("the third attempt sees %v", again)
		}
		third.Begin()
		third.Event(assistant("written"))
		third.Finish("written", r.Upload(third, "all"))
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if len(r.Writes) != 1 {
			t.Errorf("writes %v", r.Writes)
		}
		conversation(t, w, turn, "ROLE_USER", "ROLE_ASSISTANT", "ROLE_TOOL", "ROLE_ASSISTANT")
	})
}

// conversation checks what the session's next turn is told.
func conversation(t *testing.T, w *et.World, turn session.Turn, want ...string) {
	t.Helper()
	var roles []string
	err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
		projections, err := tx.Projection(turn.Session)
		if err != nil {
			return err
		}
		messages, err := session.Conversation(projections...)
		for _, m := range messages {
			roles = append(roles, m.Role.String())
		}
		return err
	})
	if err != nil || !slices.Equal(roles, want) {
		t.Errorf("the conversation is %v (%v), want %v", roles, err, want)
	}
}

// INV-7: while it waits there is no attempt, lease, slice or live capability.
func TestWaitingRunnerTurnHoldsNothing(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := asks(t, w, r, write)
		token := h.Terms.Capability
		if _, err := w.Broker.Probe(ctx(), "", ""); err != nil {
			t.Fatal(err)
		}
		h.Park(asking(h, write), "")
		w.Sleep(5 * time.Second)
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		var open []execution.Attempt
		err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
			open, err = tx.AttemptsIn(0, execution.AttemptQueued, execution.AttemptOffered, execution.AttemptClaimed, execution.AttemptRunning, execution.AttemptSuspect)
			return err
		})
		if err != nil || len(open) != 0 {
			t.Errorf("open attempts %v, %v", open, err)
		}
		all, _ := slicesOf(t, w, turn.ID)
		for _, s := range all {
			if s.ClosedAt.IsZero() {
				t.Errorf("slice %s is open", s.ID)
			}
		}
		if w.Turn(turn.ID).Slice != "" {
			t.Error("the turn has a slice")
		}
		w.Broker.Presenter = "thumb-laptop"
		if p, err := w.Broker.Probe(ctx(), token, ""); err != nil || p.Admitted {
			t.Errorf("its last capability: %v, %v", p, err)
		}
		w.Broker.Presenter = et.Presenter
		approve(t, w, turn.ID, true)
		w.Sleep(2 * time.Second)
		wantState(t, w, turn.ID, session.RunningModel, "")
	})
}

// What a person refuses, or nobody decides in time, is in the transcript of the
// next attempt, and does not happen.
func TestRunnerTurnGoesOnWithoutApproval(t *testing.T) {
	for name, decide := range map[string]func(t *testing.T, w *et.World, id protocol.TurnID){
		"denied":  func(t *testing.T, w *et.World, id protocol.TurnID) { approve(t, w, id, false) },
		"expired": func(t *testing.T, w *et.World, id protocol.TurnID) { w.Sleep(3 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				coderHas(t, w, `approvals { ttl = "2m" }`)
				turn, h := asks(t, w, r, write)
				h.Park(asking(h, write, et.Call{ID: "2", Alias: "shell", Arguments: `{"command":"id"}`}), "")
				w.Settle()
				decide(t, w, turn.ID)
				w.Settle()
				wantState(t, w, turn.ID, session.RunningModel, "")
				state, result := resumed(t, r.Turn())
				if result.Status != runtimev1.ResultStatus_RESULT_STATUS_DENIED || state.Phase != runtimev1.Phase_PHASE_TOOL || state.Pending[0].Id != "2" {
					t.Errorf("it goes on in %s at %v with %v", state.Phase, state.Pending, result)
				}
				if len(r.Writes) != 0 {
					t.Errorf("writes %v", r.Writes)
				}
			})
		})
	}
}

// The wait is not the turn's time: the new attempt has what the first had left.
func TestDecisionTakesNoWallTime(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		coderHas(t, w, `approvals { ttl = "1h" }`)
		turn, h := begun(t, w, r)
		whole := h.Spec().Limits.MaxWallMs
		w.Sleep(5 * time.Minute)
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: et.Calls(write).Done.Message}})
		h.AskParked(write)
		w.Settle()
		h.Park(asking(h, write), "")
		w.Sleep(15 * time.Minute)
		approve(t, w, turn.ID, true)
		w.Settle()
		next := r.Turn()
		left := time.Duration(whole-next.Spec().Limits.MaxWallMs) * time.Millisecond
		if left < 5*time.Minute || left > 6*time.Minute {
			t.Errorf("the first attempt used %s", left)
		}
		until := time.Until(w.Turn(turn.ID).Deadline)
		if spare := until - time.Duration(next.Spec().Limits.MaxWallMs)*time.Millisecond; spare < -time.Second || spare > time.Second {
			t.Errorf("the turn ends in %s, the attempt in %d ms", until, next.Spec().Limits.MaxWallMs)
		}
	})
}

// A machine that falls before it ended as it was told leaves no cursor: the
// question is taken back, and the model asks it again from the last checkpoint.
func TestQuestionIsLostWithItsMachine(t *testing.T) {
	for name, fall := range map[string]func(w *et.World, r *et.Runner, h *et.Held){
		"supervisor": func(w *et.World, r *et.Runner, h *et.Held) {
			h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "failed", Code: "interrupted", Message: "it fell"}}})
			w.Sleep(5 * time.Second)
		},
		"machine": func(w *et.World, r *et.Runner, h *et.Held) {
			other := w.Join("desktop", "files.read", "files.write")
			other.Files["home/todo.txt"] = "buy milk"
			r.Disconnect()
			w.Sleep(2 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				turn, h := asks(t, w, r, write)
				approval := w.Approvals(turn.ID)[0]
				approve(t, w, turn.ID, true)
				w.Settle()
				fall(w, r, h)
				wantState(t, w, turn.ID, session.RunningModel, "")
				if a := w.Approvals(turn.ID)[0]; a.State != session.ApprovalCancelled || a.ID != approval.ID {
					t.Errorf("the question is %s", a.State)
				}
				_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: approval.ID, Digest: approval.Digest, Approve: true})
				if err == nil || !strings.Contains(err.Error(), "taken back") {
					t.Errorf("a late answer is told: %v", err)
				}
				for _, m := range w.Runners {
					if len(m.Writes) != 0 {
						t.Errorf("%s wrote", m.ID)
					}
				}
				for _, m := range w.Runners {
					if held := m.Whole(); held != nil && held.ID != h.ID && held.Spec().Resume != nil {
						t.Error("it goes on from a transcript that nobody gave")
					}
				}
			})
		})
	}
}

// A runner cannot use a question for anything else: it may not give up at another
// call, nor without having been told to.
func TestHostilePark(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := asks(t, w, r, write)
		h.Park(asking(h, et.Call{ID: "x", Alias: "note", Arguments: `{"text":"x"}`}), "")
		w.Settle()
		got := wantState(t, w, turn.ID, session.Failed, "failed_precondition")
		if !strings.Contains(got.Message, "another call") {
			t.Errorf("message %q", got.Message)
		}

		turn, h = begun(t, w, r)
		h.Park(asking(h, write), "")
		w.Settle()
		wantState(t, w, turn.ID, session.RunningModel, "") // as any interruption
		if next := r.Turn(); next.ID == h.ID || next.Spec().Resume != nil {
			t.Errorf("it goes on from %v", next.Spec().Resume)
		}
		if len(w.Actions(turn.ID)) != 0 || len(r.Writes) != 0 {
			t.Errorf("actions %v, writes %v", w.Actions(turn.ID), r.Writes)
		}
	})
}

// Cancelling a parked turn ends it at once, and its question with it.
func TestParkedTurnIsCancelled(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := asks(t, w, r, write)
		h.Park(asking(h, write), "")
		w.Settle()
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		wantState(t, w, turn.ID, session.Cancelled, "cancelled")
		if a := w.Approvals(turn.ID)[0]; a.State != session.ApprovalCancelled {
			t.Errorf("the question is %s", a.State)
		}
	})
}

// A server that starts anew while a turn is parked carries the decision out.
func TestParkedTurnSurvivesARestart(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := asks(t, w, r, write)
		h.Park(asking(h, write), "")
		w.Settle()
		w.Restart()
		r.Connect()
		w.Settle()
		approve(t, w, turn.ID, true)
		w.Restart()
		r.Connect()
		w.Sleep(10 * time.Second)
		wantState(t, w, turn.ID, session.RunningModel, "")
		if _, result := resumed(t, r.Turn()); result.Status != runtimev1.ResultStatus_RESULT_STATUS_OK || len(r.Writes) != 1 {
			t.Errorf("result %v, writes %v", result, r.Writes)
		}
	})
}

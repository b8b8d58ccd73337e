package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// The server is killed after every single step of two turns in turn: whatever
// it held in memory is gone, and the store and the other sides are as they are.
// No effect happens twice, every effect has its intent, and each turn ends in a
// state that says what is known; the session's next turn runs. INV-4, INV-5.
func TestCrashAfterEveryStep(t *testing.T) {
	for _, c := range []struct {
		name string
		call et.Call
		most int // effects at the broker
	}{
		{"opaque", et.Call{ID: "n", Alias: "note", Arguments: `{"text":"x"}`}, 1},
		{"outbound", sent, 1},
		{"idempotent", et.Call{ID: "o", Alias: "order", Arguments: `{"item":"tea"}`}, 1},
		{"approved write", write, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps := 0
			for after := 0; after <= steps; after++ {
				inWorld(t, func(w *et.World, r *et.Runner) {
					steps = max(steps, crashAfter(t, w, r, c.call, after))
					if n := len(w.Broker.Effects()); n > c.most {
						t.Errorf("crash after step %d: %d effects", after, n)
					}
					if len(r.Writes) > 1 {
						t.Errorf("crash after step %d: writes %v", after, r.Writes)
					}
				})
			}
			if steps < 8 {
				t.Errorf("only %d steps were reached: the test proves little", steps)
			}
		})
	}
}

// crashAfter runs a turn with one call, drops the engine after some steps, and
// returns how many steps the turn took until then.
func crashAfter(t *testing.T, w *et.World, r *et.Runner, call et.Call, after int) int {
	t.Helper()
	w.Broker.Say(et.Script(et.Calls(call), et.Text("done"), et.Text("next")))
	s := w.Session("assistant")
	turn, next := w.Submit(s, "first"), w.Submit(s, "second")
	steps, crashed, last := 0, false, ""
	step := func() bool {
		now := w.Turn(turn.ID)
		if now.State.Terminal() {
			return true
		}
		mark := fmt.Sprint(now.State, len(w.Events(s.ID)), len(w.Broker.Effects()), len(r.Writes), w.Ops.Keys(), r.Epoch())
		for _, a := range w.Actions(turn.ID) {
			mark += fmt.Sprint(a.State)
		}
		if mark == last {
			return false // nothing became durable, left or was asked for: the same crash
		}
		last = mark
		if steps++; steps == after {
			crashed = true
			return true
		}
		approvePending(t, w, now)
		return false
	}
	w.Until("the crash or the end", step)
	if crashed {
		w.Restart()
		r.Connect()
	}
	settleAll(t, w, turn.ID, next.ID)
	end := w.Turn(turn.ID)
	actions := w.Actions(turn.ID)
	if i := slices.IndexFunc(actions, func(a session.Action) bool { return !a.State.Terminal() }); i >= 0 {
		t.Errorf("crash after step %d: action %s of a turn that is %s is %s", after, actions[i].Tool, end.State, actions[i].State)
	}
	unknown := slices.ContainsFunc(actions, func(a session.Action) bool { return a.State == session.ActionUnknown })
	if end.State == session.Unknown != (unknown && call == sent) {
		t.Errorf("crash after step %d: turn %s{%s}, an unknown action: %v", after, end.State, end.Reason, unknown)
	}
	accepted := slices.ContainsFunc(actions, func(a session.Action) bool { return a.State == session.Succeeded && a.Tool != "files.digest" })
	if happened := len(w.Broker.Effects())+len(r.Writes) > 0; happened && !accepted && !unknown {
		t.Errorf("crash after step %d: an effect is neither accepted nor unknown: %s{%s}", after, end.State, end.Reason)
	} else if accepted && !happened {
		t.Errorf("crash after step %d: accepted without an effect", after)
	}
	return steps
}

// settleAll lets turns end, approving what they ask.
func settleAll(t *testing.T, w *et.World, turns ...protocol.TurnID) {
	t.Helper()
	for range 60 {
		w.Settle()
		open := ""
		for _, id := range turns {
			now := w.Turn(id)
			approvePending(t, w, now)
			if !now.State.Terminal() {
				open = fmt.Sprint(id, " is ", now.State)
			}
		}
		if open == "" {
			return
		}
		time.Sleep(2 * time.Second)
	}
	t.Fatalf("a turn does not end: %v", turns)
}

func approvePending(t *testing.T, w *et.World, turn session.Turn) {
	t.Helper()
	if turn.State != session.WaitingApproval {
		return
	}
	for _, a := range w.Approvals(turn.ID) {
		if a.State == session.ApprovalPending {
			approve(t, w, turn.ID, true)
		}
	}
}

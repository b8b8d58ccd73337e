package engine_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// lastResult is the newest tool result that the model saw.
func lastResult(w *et.World) *runtimev1.ToolResult {
	requests := w.Broker.Requests()
	if len(requests) == 0 {
		return nil
	}
	messages := requests[len(requests)-1].Messages
	for i := len(messages) - 1; i >= 0; i-- {
		for _, b := range messages[i].Blocks {
			if r := b.GetToolResult(); r != nil {
				return r
			}
		}
	}
	return nil
}

var write = et.Call{ID: "w", Alias: "files_write", Arguments: `{"path":"home/todo.txt","content":"new"}`}

func TestApprovalDenied(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("understood")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		a := approve(t, w, turn.ID, false)
		if _, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest}); err != nil {
			t.Errorf("the same decision again: %v", err)
		}
		_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: true})
		wantCode(t, "another decision", err, protocol.CodeConflict)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_DENIED {
			t.Errorf("the model saw %v", res)
		}
		if r.Files["home/todo.txt"] != "buy milk" {
			t.Error("a denied write happened")
		}
	})
}

func TestApprovalExpires(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("too late")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		a := w.Approvals(turn.ID)[0]
		w.Sleep(10*time.Minute - time.Second)
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		w.Sleep(2 * time.Second)
		got := wantState(t, w, turn.ID, session.Completed, "")
		_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: true})
		wantCode(t, "a decision after the end", err, protocol.CodeConflict)
		if len(r.Writes) != 0 {
			t.Error("an expired write happened")
		}
		// The wall time stood still while nobody answered.
		if left := got.Deadline.Sub(got.EndedAt); left < 29*time.Minute {
			t.Errorf("%s of 30 minutes are left", left)
		}
	})
}

// INV-6: consumed at most once, by exactly the digest that was shown.
func TestApprovalIsConsumedOnce(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		a := w.Approvals(turn.ID)[0]
		_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: "sha256:other", Approve: true})
		wantCode(t, "another digest", err, protocol.CodeConflict)
		before := w.Turn(turn.ID).OwnerFence
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if len(r.Writes) != 1 {
			t.Fatalf("writes %v", r.Writes)
		}
		used := w.Approvals(turn.ID)[0]
		if used.State != session.ApprovalConsumed || used.ConsumedBy.String() != r.Writes[0] {
			t.Errorf("approval %s by %s, effect of %s", used.State, used.ConsumedBy, r.Writes[0])
		}
		for _, act := range w.Actions(turn.ID) {
			switch {
			case act.ID == used.Action && act.State != session.Superseded:
				t.Errorf("the subject is %s", act.State)
			case act.ID == used.ConsumedBy && (act.Fence <= before || act.PreImageDigest != "sha256:"+digestOf("buy milk")):
				t.Errorf("the new action has fence %s (before %s), pre-image %s", act.Fence, before, act.PreImageDigest)
			}
		}
	})
}

// What was approved is the file as it was then: one that changed is not written.
func TestApprovedPreImageIsBinding(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("it changed")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		r.Files["home/todo.txt"] = "changed meanwhile"
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_FAILED || res.Code != string(protocol.CodeConflict) {
			t.Errorf("the model saw %v", res)
		}
		if r.Files["home/todo.txt"] != "changed meanwhile" {
			t.Error("an unseen change was overwritten")
		}
	})
}

// INV-7: while a person thinks nothing is held.
func TestWaitingHoldsNothing(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if keys := w.Ops.Keys(); len(keys) != 0 {
			t.Errorf("ops %v", keys)
		}
		for _, a := range w.Actions(turn.ID) {
			if a.State == session.AwaitingApproval && a.Attempt != "" {
				t.Errorf("the waiting action has attempt %s", a.Attempt)
			}
		}
		// A server that stops and starts again still waits, and goes on.
		w.Restart()
		r.Connect()
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

func TestOnDeniedFail(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		src := strings.Replace(et.Assistant, `approvals { ttl = "10m" }`, `approvals { on_denied = "fail" }`, 1)
		if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "a.hcl", Source: []byte(src)}); err != nil {
			t.Fatal(err)
		}
		w.Broker.Say(et.Script(et.Calls(write)))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		approve(t, w, turn.ID, false)
		w.Settle()
		wantState(t, w, turn.ID, session.Failed, "approval_denied")
	})
}

package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// wantCode fails when an error has another code.
func wantCode(t *testing.T, what string, err error, code protocol.Code) {
	t.Helper()
	if protocol.CodeOf(err) != code {
		t.Errorf("%s: got %v (%s), want %s", what, err, protocol.CodeOf(err), code)
	}
}

func submit(w *et.World, c store.Caller, p engine.NewTurn) (engine.Admission, error) {
	return w.Engine.SubmitTurn(ctx(), c, p)
}

// INV-15: a duplicate message returns its turn, whatever its state.
func TestDuplicateMessage(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("hi")))
		s := w.Session("assistant")
		p := engine.NewTurn{Session: s.ID, MessageID: "m1", Prompt: "hello"}
		first, err := submit(w, w.Me(), p)
		if err != nil || first.Duplicate || first.Position != 1 {
			t.Fatalf("first: %+v, %v", first, err)
		}
		w.Settle()
		again, err := submit(w, w.Me(), p)
		if err != nil || !again.Duplicate || again.Turn.ID != first.Turn.ID || again.Turn.State != session.Completed {
			t.Errorf("again: %+v, %v", again, err)
		}
		p.Prompt = "another"
		_, err = submit(w, w.Me(), p)
		wantCode(t, "another body", err, protocol.CodeConflict)
		if n := len(w.Broker.Requests()); n != 1 {
			t.Errorf("%d model calls", n)
		}
	})
}

// INV-1: one active turn a session, in the order of the queue, and a bound.
func TestQueueIsBoundedAndInOrder(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.SetDown(true)
		w.Sleep(40 * time.Second) // the view of the broker grows stale: nothing is activated
		s := w.Session("assistant")
		var turns []session.Turn
		for i := range 3 {
			a, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: fmt.Sprint(i), Prompt: fmt.Sprint("p", i)})
			if err != nil || a.Position != i+1 {
				t.Fatalf("%d: %+v, %v", i, a, err)
			}
			turns = append(turns, a.Turn)
		}
		_, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "4", Prompt: "p"})
		wantCode(t, "a full queue", err, protocol.CodeQueueFull)
		var full *protocol.Error
		if full, _ = err.(*protocol.Error); full == nil || full.RetryAfter <= 0 {
			t.Errorf("queue_full without retry_after: %v", err)
		}
		x, err := w.Engine.Explain(ctx(), w.Me(), turns[0].ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "broker") {
			t.Errorf("explain: %+v, %v", x, err)
		}
		w.Broker.SetDown(false)
		w.Broker.Say(et.Script(et.Text("a"), et.Text("b"), et.Text("c")))
		w.Sleep(6 * time.Second)
		for i, want := range []string{"a", "b", "c"} {
			if got := w.Turn(turns[i].ID); got.State != session.Completed || got.Answer != want {
				t.Errorf("turn %d: %s %q", i, got.State, got.Answer)
			}
		}
		if last := w.Broker.Requests()[2].Messages; len(last) != 6 {
			t.Errorf("the third turn saw %d messages: instructions, two turns of two, its prompt", len(last))
		}
		var order []string
		for _, e := range w.Events(s.ID) {
			if e.Type == session.TurnActivated || e.Type == session.TurnEnded {
				order = append(order, fmt.Sprint(slices.IndexFunc(turns, func(u session.Turn) bool { return u.ID == e.Turn }), e.Type))
			}
		}
		want := "[0turn.activated 0turn.ended 1turn.activated 1turn.ended 2turn.activated 2turn.ended]"
		if got := strings.ReplaceAll(fmt.Sprint(order), " turn", "turn"); got != want {
			t.Errorf("order %v", got)
		}
	})
}

func TestAdmissionRefuses(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("ok")))
		s := w.Session("assistant")
		good := engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p"}
		for name, c := range map[string]struct {
			change func(*engine.NewTurn)
			code   protocol.Code
		}{
			"no message id":       {func(p *engine.NewTurn) { p.MessageID = "" }, protocol.CodeInvalidArgument},
			"no prompt":           {func(p *engine.NewTurn) { p.Prompt = "" }, protocol.CodeInvalidArgument},
			"a blank prompt":      {func(p *engine.NewTurn) { p.Prompt = " \t\n" }, protocol.CodeInvalidArgument},
			"no UTF-8":            {func(p *engine.NewTurn) { p.Prompt = "caf\xe9" }, protocol.CodeInvalidArgument},
			"a long prompt":       {func(p *engine.NewTurn) { p.Prompt = strings.Repeat("x", 1<<20) }, protocol.CodeInvalidArgument},
			"no such session":     {func(p *engine.NewTurn) { p.Session = "ses_01jdv3k8x0q6v9w2m4t7y5z1ab" }, protocol.CodeNotFound},
			"a foreign workspace": {func(p *engine.NewTurn) { p.WorkspaceDigest = "sha256:" + digestOf("x") }, protocol.CodeNotFound},
		} {
			p := good
			c.change(&p)
			_, err := submit(w, w.Me(), p)
			wantCode(t, name, err, c.code)
		}
		if _, err := submit(w, w.Me(), good); err != nil {
			t.Errorf("the positive twin: %v", err)
		}
		_, err := w.Engine.CreateSession(ctx(), w.Me(), engine.NewSession{Agent: "nobody"})
		wantCode(t, "an unknown agent", err, protocol.CodeNotFound)
		if !strings.Contains(err.Error(), "bivouac agents") {
			t.Errorf("no hint: %v", err)
		}
	})
}

// INV-9: what is another's does not exist, in every use case.
func TestOthersSeeNothing(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "1", Alias: "files_write", Arguments: `{"path":"home/a","content":"b"}`})))
		s := w.Session("assistant")
		turn := w.Submit(s, "write")
		w.Settle()
		approval := w.Approvals(turn.ID)[0]
		action := w.Actions(turn.ID)[0]
		_, friend := w.Principal("local", "bob", false)
		_, stranger := w.Principal("elsewhere", "eve", true)
		for name, c := range map[string]store.Caller{"same tenant": et.Caller(friend), "another tenant": et.Caller(stranger)} {
			_, err := submit(w, c, engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p"})
			wantCode(t, name+": submit", err, protocol.CodeNotFound)
			_, err = w.Engine.CancelTurn(ctx(), c, turn.ID)
			wantCode(t, name+": cancel", err, protocol.CodeNotFound)
			_, err = w.Engine.CloseSession(ctx(), c, s.ID)
			wantCode(t, name+": close", err, protocol.CodeNotFound)
			_, err = w.Engine.Explain(ctx(), c, turn.ID.String())
			wantCode(t, name+": explain", err, protocol.CodeNotFound)
			_, err = w.Engine.DecideApproval(ctx(), c, engine.ApprovalDecision{Approval: approval.ID, Digest: approval.Digest, Approve: true})
			wantCode(t, name+": approve", err, protocol.CodeNotFound)
			_, err = w.Engine.ResolveUnknown(ctx(), c, engine.Resolution{Action: action.ID, Verdict: "happened"})
			wantCode(t, name+": resolve", err, protocol.CodeNotFound)
			_, err = w.Engine.RevokeRunner(ctx(), c, r.ID, "no")
			wantCode(t, name+": revoke runner", err, protocol.CodeNotFound)
			_, _, err = w.Engine.WatchLive(ctx(), c, s.ID)
			wantCode(t, name+": watch", err, protocol.CodeNotFound)
		}
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String()); err != nil || !strings.Contains(strings.Join(x.Remedies, " "), approval.ID.String()) {
			t.Errorf("the owner's explain: %+v, %v", x, err)
		}
	})
}

func TestSessionIsIdempotentAndCloses(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "1", Alias: "files_write", Arguments: `{"path":"home/a","content":"b"}`}), et.Text("done")))
		p := engine.NewSession{Agent: "assistant", IdempotencyKey: "k"}
		a, err := w.Engine.CreateSession(ctx(), w.Me(), p)
		if err != nil {
			t.Fatal(err)
		}
		b, err := w.Engine.CreateSession(ctx(), w.Me(), p)
		if err != nil || b.ID != a.ID {
			t.Errorf("same key: %v, %v", b.ID, err)
		}
		p.Agent = "coder"
		_, err = w.Engine.CreateSession(ctx(), w.Me(), p)
		wantCode(t, "same key, another agent", err, protocol.CodeConflict)

		active, queued := w.Submit(a, "first"), w.Submit(a, "second")
		w.Settle()
		closed, err := w.Engine.CloseSession(ctx(), w.Me(), a.ID)
		if err != nil || closed.State != session.Closing {
			t.Fatalf("close: %s, %v", closed.State, err)
		}
		wantState(t, w, queued.ID, session.Cancelled, "session_closed")
		_, err = submit(w, w.Me(), engine.NewTurn{Session: a.ID, MessageID: "m", Prompt: "p"})
		wantCode(t, "a closing session", err, protocol.CodeFailedPrecondition)
		approve(t, w, active.ID, true)
		w.Settle()
		wantState(t, w, active.ID, session.Completed, "")
		if again, err := w.Engine.CloseSession(ctx(), w.Me(), a.ID); err != nil || again.State != session.Closed {
			t.Errorf("closed again: %s, %v", again.State, err)
		}
	})
}

// What waits says nothing about how long turns take: the estimate is of those that
// ended, however many wait.
func TestWaitIsEstimatedFromEndedTurns(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("a")))
		s := w.Session("assistant")
		w.Submit(s, "p")
		w.Settle()
		w.Broker.SetDown(true)
		w.Sleep(40 * time.Second) // the view of the broker grows stale: nothing is activated
		for i := range 3 {
			p := engine.NewTurn{Session: s.ID, MessageID: fmt.Sprint(i), Prompt: "p"}
			a, err := submit(w, w.Me(), p)
			if want := time.Duration(i) * 100 * time.Millisecond; err != nil || a.Position != i+1 || a.EstimatedWait != want {
				t.Errorf("%d: %+v, %v; want %s", i, a, err, want)
			}
			again, err := submit(w, w.Me(), p)
			if err != nil || !again.Duplicate || again.Position != a.Position || again.EstimatedWait != a.EstimatedWait {
				t.Errorf("%d again: %+v, %v", i, again, err)
			}
		}
	})
}

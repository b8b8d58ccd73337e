package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// sent is an outbound, opaque call that needs an approval.
var sent = et.Call{ID: "s", Alias: "send", Arguments: `{"text":"hi"}`}

// INV-5: an outbound effect of unknown outcome ends the turn UNKNOWN, is shown
// with its evidence, blocks the same thing everywhere, and a person resolves it.
func TestUnknownOutcome(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.LoseAnswers("http:send", 1)
		w.Broker.Say(et.Script(et.Calls(sent), et.Calls(sent), et.Text("blocked"), et.Calls(sent), et.Text("sent")))
		s := w.Session("assistant")
		turn := w.Submit(s, "send")
		w.Settle()
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingReconciliation, "")
		w.Sleep(61 * time.Second)
		wantState(t, w, turn.ID, session.Unknown, "outcome_unknown")
		if n := len(w.Broker.Effects()); n != 1 {
			t.Fatalf("%d effects", n)
		}
		inbox, err := w.Engine.ListUnknown(ctx(), w.Me(), false)
		if err != nil || len(inbox) != 1 || inbox[0].State != session.ActionUnknown || inbox[0].Evidence == "" {
			t.Fatalf("inbox %+v, %v", inbox, err)
		}

		// The same thing is refused in another session of the same principal.
		other := w.Submit(w.Session("assistant"), "send again")
		w.Settle()
		wantState(t, w, other.ID, session.Completed, "")
		if res := lastResult(w); res.GetCode() != string(protocol.CodeOutcomeUnknown) || !strings.Contains(res.Text, inbox[0].ID.String()) {
			t.Errorf("the model saw %v", res)
		}
		if len(w.Actions(other.ID)) != 0 {
			t.Error("a refused call has an intent")
		}

		_, err = w.Engine.ResolveUnknown(ctx(), w.Me(), engine.Resolution{Action: inbox[0].ID, Verdict: "perhaps"})
		wantCode(t, "a word that is no verdict", err, protocol.CodeInvalidArgument)
		resolved, err := w.Engine.ResolveUnknown(ctx(), w.Me(), engine.Resolution{Action: inbox[0].ID, Verdict: "did_not_happen", Note: "looked"})
		if err != nil || resolved.State != session.ActionUnknown || resolved.Resolution != "did_not_happen" {
			t.Fatalf("resolved %+v, %v", resolved, err)
		}
		wantState(t, w, turn.ID, session.Unknown, "outcome_unknown") // a resolution changes no state
		third := w.Submit(s, "once more")
		w.Settle()
		approve(t, w, third.ID, true)
		w.Settle()
		wantState(t, w, third.ID, session.Completed, "")
		if n := len(w.Broker.Effects()); n != 2 {
			t.Errorf("%d effects after the resolution", n)
		}
	})
}

// An effect below outbound leaves the turn running: the model is told UNKNOWN,
// never a failure.
func TestUnknownGoesToTheModel(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.LoseAnswers("http:note", 1)
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "n", Alias: "note", Arguments: `{"text":"x"}`}), et.Text("I cannot tell")))
		turn := w.Submit(w.Session("assistant"), "note")
		w.Settle()
		w.Sleep(61 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN {
			t.Errorf("the model saw %v", res)
		}
	})
}

// When the broker is certain that no answer will come, nobody waits for one.
func TestUnknownAtOnce(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Certain()
		w.Broker.LoseAnswers("http:send", 1)
		w.Broker.Say(et.Script(et.Calls(sent)))
		turn := w.Submit(w.Session("assistant"), "send")
		w.Settle()
		approve(t, w, turn.ID, true)
		w.Sleep(2 * time.Second)
		wantState(t, w, turn.ID, session.Unknown, "outcome_unknown")
		inbox, err := w.Engine.ListUnknown(ctx(), w.Me(), false)
		if err != nil || len(inbox) != 1 || !strings.Contains(inbox[0].Evidence, "no answer came") {
			t.Errorf("inbox %+v, %v", inbox, err)
		}
	})
}

// An idempotent call of unknown outcome is sent again, under the same key.
func TestIdempotentIsSentAgain(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.LoseAnswers("http:order", 2)
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "o", Alias: "order", Arguments: `{"item":"tea"}`}), et.Text("ordered")))
		turn := w.Submit(w.Session("assistant"), "order")
		w.Settle()
		w.Sleep(5 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetText() != "ordered" {
			t.Errorf("the model saw %v", res)
		}
		if n := len(w.Broker.Effects()); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// The broker's call log is evidence: what it does not have was not sent, if it
// reaches back far enough.
func TestCallLogIsEvidence(t *testing.T) {
	note := et.Call{ID: "n", Alias: "note", Arguments: `{"text":"x"}`}
	t.Run("never sent", func(t *testing.T) {
		inWorld(t, func(w *et.World, _ *et.Runner) {
			w.Broker.Say(et.Script(et.Calls(note), et.Text("it did not run")))
			turn := w.Submit(w.Session("assistant"), "note")
			w.Broker.Serve("http:note", func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
				t.Error("it was sent")
				return &brokerv1.InvokeResponse{HttpStatus: 200}, nil
			})
			w.Until("the intent", func() bool { return w.Turn(turn.ID).State == session.WaitingAction })
			w.Broker.SetDown(true)
			w.Settle()
			wantState(t, w, turn.ID, session.WaitingReconciliation, "")
			w.Broker.SetDown(false)
			w.Sleep(10 * time.Second)
			wantState(t, w, turn.ID, session.Completed, "")
			if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_FAILED || res.Code != string(protocol.CodeUnavailable) {
				t.Errorf("the model saw %v", res)
			}
		})
	})
	t.Run("log too young", func(t *testing.T) {
		inWorld(t, func(w *et.World, _ *et.Runner) {
			w.Broker.LoseAnswers("http:note", 1)
			w.Broker.Say(et.Script(et.Calls(note), et.Text("unknown")))
			turn := w.Submit(w.Session("assistant"), "note")
			w.Until("the effect", func() bool { return len(w.Broker.Effects()) == 1 })
			time.Sleep(time.Millisecond)
			w.Broker.Restart("boot-1", true)
			w.Sleep(30 * time.Second)
			wantState(t, w, turn.ID, session.WaitingReconciliation, "")
			w.Sleep(31 * time.Second)
			wantState(t, w, turn.ID, session.Completed, "")
			states := []session.ActionState{}
			for _, a := range w.Actions(turn.ID) {
				states = append(states, a.State)
			}
			if !slices.Equal(states, []session.ActionState{session.ActionUnknown}) {
				t.Errorf("actions %v", states)
			}
		})
	})
}

// An upstream's own no is a known outcome. What a proxy says in its place is none of an
// effect, whether the answer came back or the call log alone has it; what only reads
// has failed by it, and what may be sent again is. INV-5.
func TestUpstreamError(t *testing.T) {
	for _, c := range []struct {
		alias, arguments string
		statuses         []int32
		state            session.ActionState
	}{
		{"note", `{"text":"x"}`, []int32{400, 403, 409, 422, 429, 500, 501}, session.ActionFailed},
		{"note", `{"text":"x"}`, []int32{408, 502, 503, 504, 520, 524}, session.ActionUnknown},
		{"forecast", `{"city":"Oslo"}`, []int32{400, 408, 500, 502, 503, 504, 524}, session.ActionFailed},
		{"order", `{"item":"tea"}`, []int32{400, 500}, session.ActionFailed},
		{"order", `{"item":"tea"}`, []int32{408, 502, 503, 504, 524}, session.Succeeded},
	} {
		for _, status := range c.statuses {
			for _, untold := range []bool{false, true} {
				if untold && c.alias != "note" {
					continue // is sent again, and the log is not asked
				}
				t.Run(fmt.Sprintf("%s %d %v", c.alias, status, untold), func(t *testing.T) {
					inWorld(t, func(w *et.World, _ *et.Runner) {
						upstreamSays(t, w, et.Call{ID: "n", Alias: c.alias, Arguments: c.arguments}, status, untold, c.state)
					})
				})
			}
		}
	}
}

// upstreamSays has the first answer to a call be a status, and what follows be well.
func upstreamSays(t *testing.T, w *et.World, call et.Call, status int32, untold bool, want session.ActionState) {
	t.Helper()
	sent := 0
	w.Broker.Serve("http:"+call.Alias, func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
		if sent++; sent > 1 {
			return &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "text/plain", Body: []byte("done")}, nil
		}
		return &brokerv1.InvokeResponse{HttpStatus: status, ContentType: "text/plain", Body: []byte("no")}, nil
	})
	if untold {
		w.Broker.Lose("http:"+call.Alias, 1, et.Untold)
	}
	w.Broker.Say(et.Script(et.Calls(call), et.Text("so it is")))
	turn := w.Submit(w.Session("assistant"), "do it")
	w.Settle()
	w.Sleep(20 * time.Second)
	wantState(t, w, turn.ID, session.Completed, "")
	a := w.Actions(turn.ID)[0]
	if a.State != want {
		t.Fatalf("the action is %s: %s", a.State, a.Evidence)
	}
	inbox, err := w.Engine.ListUnknown(ctx(), w.Me(), false)
	if err != nil || (len(inbox) == 1) != (want == session.ActionUnknown) {
		t.Errorf("inbox %v, %v", inbox, err)
	}
	said, says := lastResult(w), fmt.Sprintf("HTTP %d", status)
	switch {
	case want == session.ActionFailed && !untold && (said.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_FAILED || !strings.HasPrefix(said.Text, says)),
		want == session.ActionUnknown && (said.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN || !strings.Contains(a.Evidence, says)):
		t.Errorf("the model saw %v by %s", said, a.Evidence)
	}
}

// What the runner itself cannot tell is UNKNOWN at once, never a failure.
func TestRunnerCannotTell(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("I do not know")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		r.Do = func(*runnerv1.DeviceWork) *runnerv1.Result {
			return &runnerv1.Result{Status: "unknown", Code: string(protocol.CodeOutcomeUnknown), Message: "restarted in the middle"}
		}
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN {
			t.Errorf("the model saw %v", res)
		}
		if inbox, err := w.Engine.ListUnknown(ctx(), w.Me(), false); err != nil || len(inbox) != 1 {
			t.Errorf("inbox %v, %v", inbox, err)
		}
	})
}

// A refusal of the machine's owner is a denial that the model can read.
func TestOwnerDenies(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Do = func(*runnerv1.DeviceWork) *runnerv1.Result {
			return &runnerv1.Result{Status: "denied", Code: string(protocol.CodePolicyDenied), Message: "not this folder"}
		}
		w.Broker.Say(et.Script(et.Calls(write), et.Text("ok")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_DENIED || !strings.Contains(res.Text, "not this folder") {
			t.Errorf("the model saw %v", res)
		}
	})
}

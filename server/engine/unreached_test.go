package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// A machine that cannot reach the broker says so at its first try: the event names it,
// explain names it and where to look, and so does the turn's end. Once the model has
// answered, explain waits for the machine again.
func TestMachineThatCannotReachTheBroker(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		failed := func(code string, unreachable bool) *runtimev1.LoopEvent {
			return &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ModelCallFailed{ModelCallFailed: &runtimev1.ModelCallFailed{Code: code, Unreachable: unreachable}}}
		}
		turn, h := begun(t, w, r)
		h.Event(failed("unavailable", true))
		w.Settle()
		explained := func() string {
			t.Helper()
			x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
			if err != nil {
				t.Fatal(err)
			}
			return x.WaitingFor + "\n" + strings.Join(x.Remedies, "\n")
		}
		if got := explained(); !strings.HasPrefix(got, "the broker, which \"") || !strings.Contains(got, "on that machine: bivouac-edge doctor") {
			t.Errorf("explained as %s", got)
		}
		if noBroker(t, w, r).IsZero() {
			t.Error("the machine's owner is not told")
		}
		h.Event(assistant("hello"))
		w.Settle()
		if at := noBroker(t, w, r); !at.IsZero() {
			t.Errorf("after an answer its owner is told of %s", at)
		}
		if got := explained(); !strings.HasPrefix(got, "the result from runner ") {
			t.Errorf("after an answer it is explained as %s", got)
		}
		h.Event(failed("what a worker likes to say", false))
		outcome, err := proto.Marshal(&runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: loop.ReasonUnavailable, Message: "The model did not answer."})
		if err != nil {
			t.Fatal(err)
		}
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "succeeded", Outcome: outcome}}})
		w.Settle()
		wantState(t, w, turn.ID, session.Failed, loop.ReasonUnavailable)
		if got := w.Turn(turn.ID).Message; !strings.HasPrefix(got, "On the machine \"") || !strings.HasSuffix(got, "The model did not answer.") {
			t.Errorf("the turn ends with %q", got)
		}
		var all []string
		for _, e := range w.Events(turn.Session) {
			if e.Type == session.ModelFailed {
				all = append(all, e.Data["code"]+" "+e.Data[session.DataUnreachable])
				if e.Data["runner"] != r.ID.String() || e.Attempt != h.ID {
					t.Errorf("the event is of %v", e.Data)
				}
			}
		}
		if !slices.Equal(all, []string{"unavailable broker", "unavailable "}) {
			t.Errorf("events %q", all)
		}
	})
}

func noBroker(t *testing.T, w *et.World, r *et.Runner) (at time.Time) {
	t.Helper()
	err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error {
		got, err := tx.Runner(r.ID)
		at = got.Facts.NoBroker
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Where the server itself does not reach the broker, that is what is said, and ends
// with its return.
func TestServerThatCannotReachTheBroker(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.SetDown(true)
		turn := w.Submit(w.Session("assistant"), "hi")
		w.Settle()
		x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
		if err != nil || x.WaitingFor != "the broker, which the server does not reach" || !strings.Contains(x.Remedies[0], "bivouac-broker run") {
			t.Errorf("explained as %+v, %v", x, err)
		}
		w.Sleep(2 * time.Minute)
		wantState(t, w, turn.ID, session.Failed, loop.ReasonUnavailable)
		if got := w.Turn(turn.ID).Message; !strings.Contains(got, "the last one said: the server the broker is not reached") {
			t.Errorf("the turn ends with %q", got)
		}
		turn = w.Submit(w.Session("assistant"), "hi again")
		w.Broker.SetDown(false)
		w.Broker.Say(et.Script(et.Text("hello")))
		w.Sleep(6 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

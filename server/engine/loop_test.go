package engine_test

import (
	"strings"
	"testing"

	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// A turn that waits has its loop in the store, and with it the conversation so far; one
// that has ended keeps none of it, and the next one knows the conversation all the same.
func TestEndedTurnsKeepNoLoop(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		s := w.Session("assistant")
		w.Broker.Say(et.Script(et.Text("the first answer")))
		first := w.Submit(s, "the first prompt")
		w.Settle()
		wantState(t, w, first.ID, session.Completed, "")
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		second := w.Submit(s, "the second prompt")
		w.Settle()
		wantState(t, w, second.ID, session.WaitingApproval, "")
		if kept := w.Turn(second.ID).Loop; !strings.Contains(string(kept), "the first answer") || !strings.Contains(string(kept), "the second prompt") {
			t.Errorf("a turn that waits has %d bytes of loop", len(kept))
		}
		approvePending(t, w, w.Turn(second.ID))
		w.Settle()
		wantState(t, w, second.ID, session.Completed, "")
		for _, id := range []session.Turn{first, second} {
			if kept := w.Turn(id.ID).Loop; len(kept) > 0 {
				t.Errorf("an ended turn keeps %d bytes of loop", len(kept))
			}
		}
		w.Broker.Say(et.Script(et.Text("yes")))
		w.Submit(s, "do you remember?")
		w.Settle()
		all := w.Broker.Requests()
		asked := all[len(all)-1].String()
		for _, said := range []string{"the first prompt", "the first answer", "the second prompt", "done", "do you remember?"} {
			if !strings.Contains(asked, said) {
				t.Errorf("the third turn does not know %q", said)
			}
		}
	})
}

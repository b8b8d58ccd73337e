package engine_test

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Erasing takes the words of a session that nothing works in, closes it, and
// leaves a record that still proves itself. INV-8.
func TestEraseSession(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("the answer is a secret"), et.Calls(write)))
		s := w.Session("assistant")
		done := w.Submit(s, "tell me a secret")
		w.Settle()
		wantState(t, w, done.ID, session.Completed, "")
		waits := w.Submit(s, "and write it down")
		w.Settle()
		if _, err := w.Engine.EraseSession(ctx(), w.Me(), s.ID); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac cancel") {
			t.Fatalf("while a turn waits: %v", err)
		}
		if got := w.Turn(done.ID); !strings.Contains(got.Answer, "secret") {
			t.Fatalf("a refused erasure took something: %+v", got)
		}
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), waits.ID); err != nil {
			t.Fatal(err)
		}
		w.Settle()

		_, stranger := w.Principal("elsewhere", "mallory", true)
		if _, err := w.Engine.EraseSession(ctx(), et.Caller(stranger), s.ID); protocol.CodeOf(err) != protocol.CodeNotFound { // INV-9
			t.Fatalf("by a stranger: %v", err)
		}
		for range 2 {
			got, err := w.Engine.EraseSession(ctx(), w.Me(), s.ID)
			if err != nil || got.State != session.Closed {
				t.Fatalf("%s, %v", got.State, err)
			}
		}
		if got := w.Turn(done.ID); got.State != session.Completed || got.Prompt != store.Tombstone || got.Answer != store.Tombstone {
			t.Errorf("%+v", got)
		}
		for _, e := range w.Events(s.ID) {
			if strings.Contains(e.Payload, "secret") {
				t.Errorf("event %d still says %q", e.Seq, e.Payload)
			}
		}
		if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error { return tx.VerifyEvents(s.ID) }); err != nil {
			t.Error(err)
		}
	})
}

package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// A question of a machine's owner counts when it is about what the machine was given:
// the time of the turn stands still, and what was not used is given back. About
// anything else it is no question: it moves no clock, leaves no event, and when the
// machine goes away nobody says for it that nothing ran. INV-5, INV-6.
func TestQuestionIsAboutTheWork(t *testing.T) {
	for name, honest := range map[string]bool{"about the work": true, "about something else": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				r.Keyed, r.Reports = true, false
				w.Broker.Say(et.Script(et.Calls(et.Call{ID: "r", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}), et.Text("x")))
				turn := w.Submit(w.Session("assistant"), "read it")
				w.Until("the machine to have it", func() bool { a := w.Actions(turn.ID); return len(a) == 1 && r.Holds(a[0].Attempt) != nil })
				h, before := r.Holds(w.Actions(turn.ID)[0].Attempt), w.Turn(turn.ID).Deadline
				asked := h.Journal[len(h.Journal)-1].GetOwnerAsked()
				if !honest {
					asked.Digest = "sha256:" + digestOf("something else")
				}
				r.Reports = true
				w.Settle()
				if moved := w.Turn(turn.ID).Deadline.After(before); moved != honest {
					t.Errorf("the deadline was moved: %v", moved)
				}
				h.Append(&runnerv1.Record{Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: &runnerv1.OwnerDecided{Decision: secondkey.Denied, Digest: asked.Digest, By: strings.Repeat("é", 4000)}}})
				w.Settle()
				if after := w.Turn(turn.ID).Deadline; after.Before(before) || after.Sub(before) > time.Second {
					t.Errorf("after the decision the deadline is %v further", after.Sub(before))
				}
				for _, kind := range []session.EventType{session.OwnerAsked, session.OwnerDecided} {
					if has := slices.Contains(w.Types(turn.Session), kind); has != honest {
						t.Errorf("%s is in the record: %v", kind, has)
					}
				}
				for _, e := range w.Events(turn.Session) {
					if n := len(e.Data["by"]); n > 300 || e.Type == session.OwnerDecided && n == 0 {
						t.Errorf("%s keeps %d bytes of the machine's words", e.Type, n)
					}
				}
				r.Renews = false
				w.Sleep(15 * time.Minute)
				if a := w.Actions(turn.ID)[0]; strings.Contains(a.Evidence, "while it waited for its owner") != honest {
					t.Errorf("the machine is away, and the action is %s: %s", a.State, a.Evidence)
				}
			})
		})
	}
}

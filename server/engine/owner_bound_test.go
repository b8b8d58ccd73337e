package engine_test

import (
	"strings"
	"testing"

	et "bivouac/server/engine/enginetest"
)

// Whose bound ends the question of a machine's owner is said: the server's, or the one
// that the machine chose within it.
func TestExplainSaysWhoseBoundCounts(t *testing.T) {
	for _, own := range []bool{true, false} {
		inWorld(t, func(w *et.World, r *et.Runner) {
			r.Keyed, r.Reports = true, false
			w.Broker.Say(et.Script(et.Calls(et.Call{ID: "r", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}), et.Text("x")))
			turn := w.Submit(w.Session("assistant"), "read it")
			w.Until("the machine to have it", func() bool { a := w.Actions(turn.ID); return len(a) == 1 && r.Holds(a[0].Attempt) != nil })
			h := r.Holds(w.Actions(turn.ID)[0].Attempt)
			if asked := h.Journal[len(h.Journal)-1].GetOwnerAsked(); own {
				asked.WaitMs /= 2
			} else {
				asked.WaitMs *= 2 // what it says beyond our bound does not count
			}
			r.Reports = true
			w.Settle()
			x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
			if err != nil || strings.Contains(x.WaitingFor, "its edge.hcl lets it wait no longer") != own ||
				strings.Contains(x.WaitingFor, "as long as an approval of its agent may wait") == own {
				t.Errorf("own bound %v: %q, %v", own, x.WaitingFor, err)
			}
		})
	}
}

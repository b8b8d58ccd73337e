package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
)

// A turn that asks for more than its node has in all is put nowhere, holds up no other, and
// says what there is; once there is a node for it, it begins.
func TestTurnLargerThanItsNode(t *testing.T) {
	for name, larger := range map[string]string{"memory": `memory = "8GiB"`, "cpu_millis": "cpu_millis = 64000", "disk": `disk = "64GiB"`} {
		t.Run(name, func(t *testing.T) {
			inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
				n.Has = execution.Resources{CPUMillis: 4000, MemoryBytes: 4 << 30, DiskBytes: 16 << 30}
				n.Largest = n.Has
				source := strings.Replace(et.CoderOwn, "  lease {", "  sandbox {\n    "+larger+"\n  }\n  lease {", 1)
				source = strings.Replace(source, `agent "coder"`, `agent "large"`, 1)
				if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "large.hcl", Source: []byte(source)}); err != nil {
					t.Fatal(err)
				}
				large := w.Submit(w.Session("large"), "fix all of it")
				w.Settle()
				turn := w.Submit(w.Session("coder"), "fix it")
				w.Settle()
				goesOn(t, w, r, turn)
				w.Sleep(10 * time.Minute)
				if a := attemptOf(t, w, large.ID); a.State != execution.AttemptQueued || a.Allocations != 0 || !strings.Contains(a.DeferReason, "and the largest node of pool agents has") {
					t.Errorf("%+v", a)
				}
				wantWaiting(t, w, large.ID, "the agent asks ")
				x, err := w.Engine.Explain(ctx(), w.Me(), large.ID.String())
				if err != nil || !slices.ContainsFunc(x.Remedies, func(s string) bool {
					return strings.Contains(s, "lower "+name+" in the sandbox of the agent") && strings.Contains(s, "add a larger node to pool agents")
				}) {
					t.Errorf("%+v, %v", x, err)
				}
				if len(n.Asked) != 1 {
					t.Errorf("asked for were %v", n.Asked)
				}
				n.Has = execution.Resources{CPUMillis: 64_000, MemoryBytes: 8 << 30, DiskBytes: 64 << 30}
				goesOn(t, w, r, large)
			})
		})
	}
}

// A turn that no node ever holds ends in its time, with the same words.
func TestTurnLargerThanItsNodeEnds(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, _ *et.Runner) {
		n.Has.MemoryBytes = 1 << 20
		n.Largest = n.Has
		turn, _ := waits(t, w)
		w.Sleep(16 * time.Minute)
		if got := wantState(t, w, turn.ID, session.Failed, "not_placed"); !strings.Contains(got.Message, "the largest node of pool agents has 1 for one") {
			t.Errorf("%q", got.Message)
		}
	})
}

// A refusal at the last moment, by a node that shrank after it was chosen, holds up nobody:
// the turn waits, and another one begins.
func TestNodeShrinksBeforeItIsAsked(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Refuse = protocol.Errorf(protocol.CodeFailedPrecondition, "it asks 1024 MiB of memory, and node alpha of pool agents has 1 for a turn")
		turn, _ := waits(t, w)
		wantWaiting(t, w, turn.ID, "its allocation was refused: it asks 1024 MiB of memory")
		n.Refuse = nil
		goesOn(t, w, r, w.Submit(w.Session("coder"), "a second one"))
		goesOn(t, w, r, turn)
	})
}

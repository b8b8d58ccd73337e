package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// A machine that leaves, or is revoked, while a write waits for its owner: nothing
// ran, the same write is free at once, and nobody has to say so. A write that the
// machine had may have happened, and keeps its doubt. INV-5.
func TestMachineEndsWhileItsOwnerIsAsked(t *testing.T) {
	for name, end := range map[string]func(w *et.World, r *et.Runner) error{
		"leave": func(w *et.World, r *et.Runner) error { return w.Engine.Leave(ctx(), r.Caller()) },
		"revoke": func(w *et.World, r *et.Runner) error {
			_, err := w.Engine.RevokeRunner(ctx(), w.Me(), r.ID, "sold")
			return err
		},
	} {
		for _, keyed := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", asked", false: ", at work"}[keyed], func(t *testing.T) {
				inWorld(t, func(w *et.World, r *et.Runner) {
					w.Broker.Say(et.Script(et.Calls(write), et.Text("so it is")))
					turn := w.Submit(w.Session("assistant"), "write it")
					w.Settle() // the digest is known, and a person is asked
					r.Keyed, r.Reports = keyed, keyed
					approve(t, w, turn.ID, true)
					w.Settle()
					if err := end(w, r); err != nil {
						t.Fatal(err)
					}
					w.Sleep(2 * time.Minute)
					acts := w.Actions(turn.ID)
					a := acts[slices.IndexFunc(acts, func(a session.Action) bool { return a.Attempt != "" && a.Tool != policy.RefDigest })]
					want := session.ActionUnknown
					if keyed {
						want = session.ActionFailed
					}
					if a.State != want || strings.Contains(a.Evidence, "while it waited for its owner") != keyed ||
						strings.Count(a.Evidence, "revoked or removed") != 1 {
						t.Errorf("the action is %s: %q", a.State, a.Evidence)
					}
					inbox, err := w.Engine.ListUnknown(ctx(), w.Me(), false)
					if err != nil || len(inbox) == 0 != keyed {
						t.Errorf("nobody knows of %d action(s), %v", len(inbox), err)
					}
					if res := lastResult(w); keyed && res.GetCode() != string(protocol.CodeUnavailable) {
						t.Errorf("the model saw %v", res)
					}
				})
			})
		}
	}
}

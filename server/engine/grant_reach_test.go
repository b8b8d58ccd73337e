package engine_test

import (
	"slices"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// What a grant reaches is told before it is taken back, to its principal and to the
// tenant's admins, and to nobody else.
func TestGrantReach(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		_, carol := w.Principal("local", "carol", true)
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: []string{"weather-token", "unused"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "first")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		w.Session("assistant") // stands on nothing yet

		for who, c := range map[string]store.Caller{"its principal": w.Me(), "an admin": et.Caller(carol)} {
			reach, err := w.Engine.GrantReach(ctx(), c, g.ID)
			if err != nil {
				t.Fatalf("%s: %v", who, err)
			}
			if reach.Sessions != 1 || reach.Running != 1 || len(reach.Machines) != 1 {
				t.Errorf("%s: sessions %d, running %d, machines %v", who, reach.Sessions, reach.Running, reach.Machines)
			}
			if c := reach.Credentials; len(c) != 2 || !slices.Contains(c[0].Tools, "http:forecast") || !slices.Equal(c[0].Destinations, []string{"weather"}) || c[1].Tools != nil {
				t.Errorf("%s: credentials %+v", who, c)
			}
		}
		_, err = w.Engine.GrantReach(ctx(), et.Caller(bob), g.ID)
		wantCode(t, "another's grant", err, protocol.CodeNotFound)
		if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, ""); err != nil {
			t.Fatal(err)
		}
		if reach, err := w.Engine.GrantReach(ctx(), w.Me(), g.ID); err != nil || reach.Running != 0 || reach.Sessions != 0 {
			t.Errorf("after the revocation: %+v, %v", reach, err)
		}
	})
}

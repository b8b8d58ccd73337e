package harness_test

import (
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// talker is a model whose answer takes a minute, one letter a second.
const talker = `
rule "talk" {
  when { user_contains = "talk" }
  text        = "............................................................"
  chunk_runes = 1
  chunk_delay = "1s"
}
rule "short" {
  text = "In short: ${last_user}"
}
`

const callModel = "bivouac.broker.v1.BrokerService/CallModel"

// streaming starts a turn of an agent under a grant and waits until its model
// stream is open and has brought something.
func streaming(t *testing.T, w *harness.World, definition, agent string) (alice *harness.Person, grant *apiv1.Grant, session, turn string) {
	t.Helper()
	alice = w.Person("alice")
	alice.Apply(definition)
	grant = alice.Grant(agent)
	session = alice.Open(agent)
	turn = alice.Submit(session, "m1", "talk")
	w.Until("the stream is open", time.Minute, func() bool { return len(w.Provider.Received()) == 1 })
	time.Sleep(3 * time.Second)
	if n := len(w.Log.Calls(harness.Broker, callModel)); n != 0 {
		t.Fatalf("the stream ended before it was to: %d calls", n)
	}
	return alice, grant, session, turn
}

// A revocation in the middle of a model stream: nothing is minted from the record
// on, the flow ends when the floor has crossed the wire, the turn fails for that
// reason, and on the machine nothing runs. INV-13.
func TestRevocationEndsTheModelStream(t *testing.T) {
	for _, c := range []struct{ name, definition, agent string }{
		{"in the server's loop", assistant, "assistant"},
		{"on a runner", coder, "coder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Test(t, harness.Options{Script: talker}, func(t *testing.T, w *harness.World) {
				a := w.Edge("a")
				alice, grant, session, turn := streaming(t, w, c.definition, c.agent)
				at := time.Now()
				res, err := alice.Grants.RevokeGrant(t.Context(), &apiv1.RevokeGrantRequest{GrantId: grant.GetId(), Reason: "enough"})
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range res.GetLayers() {
					if !l.GetGone() {
						t.Errorf("layer %s is not gone: %s", l.GetName(), l.GetDetail())
					}
				}
				if res.GetReceipt() == "" || w.GrantAlive(grant.GetId()) {
					t.Error("there is no receipt, or the keyring has the grant alive")
				}
				got := alice.Ended(turn)
				if got.GetState() != "FAILED" || got.GetReason() != "grant_revoked" {
					t.Errorf("the turn ended as %s: %s", got.GetState(), got.GetReason())
				}
				w.Exactly("the turn ended", alice.EventAt(session, "turn.ended", ""), at)
				flows := w.Log.Calls(harness.Broker, callModel)
				if len(flows) != 1 {
					t.Fatalf("%d flows ended", len(flows))
				}
				w.Exactly("the flow ended", flows[0].At, at.Add(harness.Latency))
				w.Until("nothing runs on the machine", time.Minute, func() bool { return a.Supervisors() == 0 && len(a.Attempts()) == 0 })
				time.Sleep(2 * time.Minute) // whatever would ask again has asked
				if n := len(w.Provider.Received()); n != 1 {
					t.Errorf("%d requests were admitted after the revocation", n-1)
				}
				// Another authority is not touched by it.
				alice.Grant(c.agent)
				again := alice.Completed(alice.Submit(alice.Open(c.agent), "m1", "again"))
				if again.GetAnswer() != "In short: again" {
					t.Errorf("under a new grant: %v", again)
				}
			})
		})
	}
}

// twoCommands is a model that runs two commands and ends.
const twoCommands = `
rule "first" {
  when { results = 0 }
  call "shell" {
    arguments = { command = "sleep 3s" }
  }
}
rule "second" {
  when { results = 1 }
  call "shell" {
    arguments = { command = "sleep 4s" }
  }
}
rule "done" {
  when { results = 2 }
  text = "Both ran."
}
`

// A broker admits no request once its feed is two seconds old, although the
// machine has its lease and its capability; the loop asks again, and when the
// feed is back the turn goes on. INV-13.
func TestOldFeedAdmitsNothing(t *testing.T) {
	harness.Test(t, harness.Options{Script: twoCommands}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		started(t, w, 1)
		time.Sleep(2 * time.Second)
		w.Sever(harness.Server, harness.Broker)
		cut := time.Now()
		started(t, w, 2) // a call with the feed one second old was admitted
		w.Until("a request is refused", 10*time.Second, func() bool {
			return len(w.Log.Calls(harness.Broker, callModel, "code", "unavailable")) == 2
		})
		for _, call := range w.Log.Calls(harness.Broker, callModel) {
			if age, code := call.At.Sub(cut), call.Attrs["code"]; (age > harness.FeedLimit) != (code == "unavailable") {
				t.Errorf("with the feed cut for %v a request got %s", age, code)
			}
		}
		if n := len(w.Provider.Received()); n != 2 {
			t.Errorf("%d requests reached the provider, want 2", n)
		}
		w.Mend(harness.Server, harness.Broker)
		if got := alice.Completed(turn); got.GetAnswer() != "Both ran." || len(got.GetAttempts()) != 1 {
			t.Errorf("the turn ended as %v", got)
		}
		inOrder(t, alice, session, "shell", "shell")
	})
}

// An admitted flow outlives the feed for the authority ttl and not longer. INV-13.
func TestFlowsCloseWithoutAFeed(t *testing.T) {
	harness.Test(t, harness.Options{Script: talker}, func(t *testing.T, w *harness.World) {
		w.Edge("a")
		alice, _, _, turn := streaming(t, w, coder, "coder")
		cut := time.Now()
		w.Sever(harness.Server, harness.Broker)
		w.Until("the flow is closed", time.Minute, func() bool { return len(w.Log.Calls(harness.Broker, callModel)) > 0 })
		flow := w.Log.Calls(harness.Broker, callModel)[0]
		// The last reading came at most a heartbeat before the cut; its age is judged
		// from before it was asked for, and looked at each quarter of a second.
		if age := flow.At.Sub(cut); age < harness.FlowTTL-2*harness.FeedEvery || age > harness.FlowTTL+harness.FeedEvery || flow.Attrs["code"] != "unavailable" {
			t.Errorf("the flow ended %v after the cut, with %s", age, flow.Attrs["code"])
		}
		if got := state(t, alice, turn, 0); got != "RUNNING" {
			t.Errorf("the attempt is %s: the machine has its lease", got)
		}
		w.Mend(harness.Server, harness.Broker)
		if got := alice.Completed(turn); len(got.GetAttempts()) != 1 || len(w.Provider.Received()) != 2 {
			t.Errorf("after the feed was back the turn ended as %v", got)
		}
	})
}

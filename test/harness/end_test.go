package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// killedAt is when the one command that was killed on edge "a" was.
func killedAt(t *testing.T, w *harness.World) time.Time {
	t.Helper()
	w.Until("the command is killed", time.Minute, func() bool { return len(w.Log.Find("a", "command ended")) > 0 })
	ended := w.Log.Find("a", "command ended", "killed", "true")
	if len(ended) != 1 {
		t.Fatalf("%d commands were killed", len(ended))
	}
	return ended[0].At
}

// A cancelled turn ends at once; its process is gone as soon as the word has
// reached the machine, and the next turn is activated in the same instant. INV-1.
func TestCancelEndsTheCommandAndFreesTheSession(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 1m")
		next := alice.Submit(session, "m2", "run sleep 1s")
		time.Sleep(time.Second)
		at := time.Now()
		if _, err := alice.Turns.CancelTurn(t.Context(), &apiv1.CancelTurnRequest{TurnId: turn}); err != nil {
			t.Fatal(err)
		}
		w.Exactly("the command was killed", killedAt(t, w), at.Add(harness.Latency))
		if got := alice.Turn(turn); got.GetState() != "CANCELLED" || got.GetAttempts()[0].GetState() != "CANCELLED" {
			t.Errorf("the cancelled turn is %v", got)
		}
		done := alice.Completed(next)
		w.Exactly("the next turn was activated", done.GetActivatedAt().AsTime(), at)
	})
}

// A revoked machine ends everything when the word reaches it, and its daemon says
// what to do; the server has given the work to the other machine already. INV-13.
func TestRevokedMachineEndsEverything(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 10s")
		a := w.Edge("a")
		w.Edge("b")
		at := time.Now()
		if _, err := alice.Runners.RevokeRunner(t.Context(), &apiv1.RevokeRunnerRequest{RunnerId: alice.Runner("a").GetId()}); err != nil {
			t.Fatal(err)
		}
		w.Exactly("the command was killed", killedAt(t, w), at.Add(harness.Latency))
		w.Exactly("the attempt ended", alice.EventAt(session, "attempt.ended", "INTERRUPTED"), at)
		if err := a.Fenced(); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "bivouac-edge join") {
			t.Errorf("the daemon ended with %v", err)
		}
		if got := alice.Completed(turn); len(got.GetAttempts()) != 2 || got.GetAttempts()[1].GetRunnerName() != "b" {
			t.Errorf("the turn ended as %v", got)
		}
		w.Exactly("b claimed", alice.EventAt(session, "attempt.claimed", ""), at.Add(2*harness.Latency))
	})
}

// A recreated instance ends what runs under the earlier generation: the model
// stream, and the command line's next words go to the new one. INV-16.
func TestRecreatedInstanceEndsTheModelStream(t *testing.T) {
	harness.Test(t, harness.Options{Script: talker}, func(t *testing.T, w *harness.World) {
		w.Edge("a")
		alice, _, _, turn := streaming(t, w, coder, "coder")
		at := time.Now()
		if _, err := alice.Agents.RecreateInstance(t.Context(), &apiv1.RecreateInstanceRequest{Agent: "coder"}); err != nil {
			t.Fatal(err)
		}
		if got := alice.Ended(turn); got.GetState() != "FAILED" || got.GetReason() != "instance_recreated" {
			t.Errorf("the turn ended as %s: %s", got.GetState(), got.GetReason())
		}
		w.Until("the flow ends", time.Minute, func() bool { return len(w.Log.Calls(harness.Broker, callModel)) == 1 })
		w.Exactly("the flow ended", w.Log.Calls(harness.Broker, callModel)[0].At, at.Add(harness.Latency))
		alice.Completed(alice.Submit(alice.Open("coder"), "m1", "again"))
		if n := len(w.Provider.Received()); n != 2 {
			t.Errorf("%d requests reached the provider, want the cut one and the new one", n)
		}
	})
}

// Work waits for a machine of its own and never goes to another's; explain says
// what is missing. When the machine joins, it is placed. INV-11.
func TestWorkWaitsForAMachineOfItsOwn(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		w.Edge("a") // of alice
		bob := w.PersonOf("acme", "bob")
		bob.Apply(coder)
		turn := bob.Submit(bob.Open("coder"), "m1", "run sleep 1s")
		time.Sleep(30 * time.Second)
		if got := bob.Turn(turn); got.GetState() != "RECEIVED" || len(w.Log.Find("a", "command started")) != 0 {
			t.Fatalf("without a machine of bob's the turn is %s", got.GetState())
		}
		why, err := bob.Turns.Explain(t.Context(), &apiv1.ExplainRequest{Id: turn})
		if err != nil {
			t.Fatal(err)
		}
		if len(why.GetRunners()) != 0 || why.GetWaitingFor() == "" || len(why.GetRemedies()) == 0 {
			t.Errorf("explain says %v", why)
		}
		b := w.EdgeWith("b", harness.EdgeOptions{Owner: bob})
		if got := bob.Completed(turn); got.GetAttempts()[0].GetRunnerName() != "b" {
			t.Errorf("the turn ran as %v", got.GetAttempts())
		}
		if _, err := w.Client("alice").Turns.GetTurn(t.Context(), &apiv1.GetTurnRequest{TurnId: turn}); protocol.CodeOf(err) != protocol.CodeNotFound { // INV-9
			t.Errorf("alice asked for bob's turn and got %v", err)
		}
		w.Until("b is tidy", time.Minute, func() bool { return len(b.Attempts()) == 0 })
	})
}

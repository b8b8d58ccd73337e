package harness_test

import (
	"testing"
	"time"

	"bivouac/test/harness"
)

// Where UDP is eaten both jobs are done over TCP, and when it is not any more the
// link moves back to QUIC under a running attempt: the old connection drains, the
// attempt does not notice.
func TestBothTurnsOverTCPAndBack(t *testing.T) {
	harness.Test(t, harness.Options{Script: packing + longSteps}, func(t *testing.T, w *harness.World) {
		w.BlockUDP(true)
		time.Sleep(15 * time.Second) // server and broker have noticed
		w.AwaitReady()
		alice, a := w.Person("alice"), w.Edge("a")
		if got := a.Status().Transport; got != "http/2" {
			t.Fatalf("connected over %s", got)
		}
		a.Write("trip.txt", "Bergen\n")
		alice.Apply(assistant)
		alice.PutCredential(harness.ToolCredential, harness.ToolKey)
		alice.Grant("assistant", harness.ToolCredential)
		turn := alice.Submit(alice.Open("assistant"), "m1", "make a packing list")
		alice.Decide(alice.AwaitApproval(), true)
		alice.Completed(turn)

		alice, session, turn := coding(t, w)
		started(t, w, 1)
		epoch := a.Status().Epoch
		w.BlockUDP(false)
		w.Until("the link is back on QUIC", 5*time.Minute, func() bool { return a.Status().Transport == "http/3" })
		sameAttempt(t, w, alice, session, turn)
		if got := a.Status().Epoch; got <= epoch {
			t.Errorf("the move took no new epoch: %d after %d", got, epoch)
		}
		if moves := w.Log.Find(harness.Server, "attempt moved"); len(moves) != 0 {
			t.Errorf("the attempt was moved: %v", moves)
		}
	})
}

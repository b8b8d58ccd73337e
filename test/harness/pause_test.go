package harness_test

import (
	"testing"
	"time"

	"bivouac/test/harness"
)

// The owner's switch needs no network: what runs is ended at once, nothing is
// taken, and the server learns of it when the machine is back. Resumed, the
// machine works again.
func TestPauseWithoutANetwork(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, _, turn := running(t, w, "sleep 1m")
		a := w.Edge("a")
		renewed(t, w)
		w.Partition("a")
		at := time.Now()
		a.Pause()
		killed := w.Log.Find("a", "command ended", "killed", "true")
		if len(killed) != 1 {
			t.Fatalf("the command was ended %d times when the switch answered", len(killed))
		}
		w.Exactly("the command was killed", killed[0].At, at)
		if a.Status().Stopping != 0 || !a.Status().Paused {
			t.Errorf("when the switch answered the machine said %+v", a.Status())
		}
		time.Sleep(time.Second)
		if r := alice.Runner("a"); r.GetPaused() {
			t.Error("the server knows over a cut cable")
		}
		w.Heal("a")
		w.Until("the server knows", time.Minute, func() bool { return alice.Runner("a").GetPaused() })
		got := alice.Ended(turn)
		if got.GetState() != "CANCELLED" || got.GetMessage() != "the owner has paused this machine" || len(got.GetAttempts()) != 1 {
			t.Errorf("the turn ended as %v", got)
		}
		w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 && a.Supervisors() == 0 })

		// Nothing is placed on it while it is paused; then it is, at once.
		next := alice.Submit(alice.Open("coder"), "m2", "run sleep 1s")
		time.Sleep(30 * time.Second)
		if got := alice.Turn(next); got.GetState() != "RECEIVED" || len(w.Log.Find("a", "command started")) != 1 {
			t.Errorf("on a paused machine a turn is %s", got.GetState())
		}
		a.Resume()
		alice.Completed(next)
	})
}

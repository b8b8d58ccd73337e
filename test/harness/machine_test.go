package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/server/execution"
	"bivouac/test/harness"
)

// A machine that loses its power and is back soon says itself that its work was
// interrupted: the turn goes on from its checkpoint without waiting for the lease.
// INV-14: the attempt is not begun again.
func TestPowerCutIsReportedAfterTheRestart(t *testing.T) {
	harness.Test(t, harness.Options{Script: author}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		w.Edge("a")
		alice.Apply(coder)
		session := alice.Open("coder")
		turn := alice.Submit(session, "m1", "write a note, then take long")
		started(t, w, 1)
		last := renewed(t, w)
		w.KillEdge("a")
		time.Sleep(time.Second)
		a := w.ReviveEdge("a")
		got := alice.Completed(turn)
		if n := len(got.GetAttempts()); n != 2 || got.GetAnswer() != "It says: from the first turn\n" {
			t.Errorf("the turn ended as %v", got)
		}
		over := alice.EventAt(session, "attempt.ended", "interrupted")
		if !over.Before(last.Add(retention + execution.LeaseGuard)) {
			t.Errorf("the attempt ended only at %v", w.Since(over))
		}
		for _, e := range alice.EventsOf(session) {
			if e.GetType() == "attempt.started" && e.GetAttemptId() == got.GetAttempts()[0].GetId() && e.GetAt().AsTime().After(over) {
				t.Error("the interrupted attempt was begun again")
			}
		}
		w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 }) // INV-18
	})
}

// A daemon that is away for longer than the ttl, and comes back within the
// retention: its supervisor freezes the work by itself, exactly when the authority
// that it was passed ends, and goes on when the daemon brings it again. INV-20.
func TestSupervisorHoldsTheWorkWithoutItsDaemon(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 1m")
		a := w.Edge("a")
		w.Edge("b")
		sent := renewed(t, w)
		a.StopDaemon()
		w.SleepUntil(sent.Add(2 * ttl))
		w.Exactly("the attempt was frozen", frozenAt(t, w), sent.Add(ttl))
		a.StartDaemon()
		if got := alice.Completed(turn); len(got.GetAttempts()) != 1 || got.GetAnswer() != "It said: slept 1m\n" {
			t.Errorf("the turn ended as %v", got)
		}
		inOrder(t, alice, session, "shell")
	})
}

// A daemon that is away for longer than the retention: its supervisor ends the
// work by itself, exactly then. INV-20.
func TestSupervisorEndsTheWorkWithoutItsDaemon(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 1m")
		a := w.Edge("a")
		w.Edge("b")
		sent := renewed(t, w)
		a.StopDaemon()
		w.Exactly("the command was killed", killedAt(t, w), sent.Add(retention))
		a.StartDaemon()
		got := alice.Completed(turn)
		if n := len(got.GetAttempts()); n != 2 || !strings.HasPrefix(got.GetAnswer(), "It said: slept") {
			t.Errorf("the turn ended as %v", got)
		}
		if n := len(w.Log.Find("a", "command started")) + len(w.Log.Find("b", "command started")); n != 2 {
			t.Errorf("the command was started %d times", n)
		}
		inOrder(t, alice, session, lost, "shell")
		w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 && a.Supervisors() == 0 })
	})
}

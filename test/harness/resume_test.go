package harness_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/server/execution"
	"bivouac/test/harness"
)

// steps is a model that runs five commands, one after the other.
var steps = func() string {
	var b strings.Builder
	for n := range 5 {
		fmt.Fprintf(&b, `
rule "step %d" {
  when { results = %d }
  call "shell" {
    arguments = { command = "sleep 2%dms" }
  }
}
`, n, n, n)
	}
	return b.String() + `
rule "done" {
  when { results = 5 }
  text = "Five steps: ${last_result}"
}
`
}()

// longSteps are the same with seconds.
var longSteps = strings.ReplaceAll(steps, "ms\"", "s\"")

var fiveShells = []string{"shell", "shell", "shell", "shell", "shell"}

// started waits until edge "a" has started a number of commands.
func started(t *testing.T, w *harness.World, n int) {
	t.Helper()
	w.Until(fmt.Sprintf("command %d runs", n), 10*time.Minute, func() bool { return len(w.Log.Find("a", "command started")) >= n })
}

func coding(t *testing.T, w *harness.World) (alice *harness.Person, session, turn string) {
	t.Helper()
	alice = w.Person("alice")
	w.Edge("a")
	alice.Apply(coder)
	session = alice.Open("coder")
	return alice, session, alice.Submit(session, "m1", "go")
}

// sameAttempt proves that one attempt did everything once, and that everything it
// reported is there once.
func sameAttempt(t *testing.T, w *harness.World, alice *harness.Person, session, turn string) {
	t.Helper()
	done := alice.Completed(turn)
	if len(done.GetAttempts()) != 1 || !strings.HasPrefix(done.GetAnswer(), "Five steps: slept 24") {
		t.Errorf("the turn ended as %v", done)
	}
	if n := len(w.Log.Find("a", "command started")); n != 5 {
		t.Errorf("%d commands were started, want 5", n)
	}
	inOrder(t, alice, session, fiveShells...)
	if n := len(alice.Turn(turn).GetAttempts()); n != 1 {
		t.Errorf("%d attempts", n)
	}
	w.Until("the machine is tidy", time.Minute, func() bool { return len(w.Edge("a").Attempts()) == 0 && w.Edge("a").Supervisors() == 0 }) // INV-18
}

// While the server cannot be reached the attempt goes on as long as it has
// authority; what it journalled meanwhile arrives once and in order.
func TestJournalSurvivesAPartition(t *testing.T) {
	harness.Test(t, harness.Options{Script: steps}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		started(t, w, 1)
		w.Sever("a", harness.Server)
		started(t, w, 4) // by model calls over the broker, which is not cut off
		reported := len(alice.EventsOf(session))
		time.Sleep(3 * time.Second)
		if n := len(alice.EventsOf(session)); n != reported {
			t.Errorf("%d events came over a cut cable", n-reported)
		}
		w.Mend("a", harness.Server)
		sameAttempt(t, w, alice, session, turn)
	})
}

// A server that is killed and started again takes up the running attempt: it goes
// on meanwhile, resumes from its journal, and all lease durations start anew.
// INV-14, INV-20.
func TestServerRestartWithARunningAttempt(t *testing.T) {
	harness.Test(t, harness.Options{Script: longSteps}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		w.Edge("b")
		started(t, w, 2)
		w.KillServer()
		time.Sleep(time.Second)
		w.StartServer()
		w.Edge("a").AwaitConnected()
		if got := state(t, alice, turn, 0); got != "RUNNING" {
			t.Errorf("after the restart the attempt is %s", got)
		}
		sameAttempt(t, w, alice, session, turn)
		if moves := w.Log.Find(harness.Server, "attempt moved"); len(moves) != 0 {
			t.Errorf("the attempt was moved: %v", moves)
		}
	})
}

// The machine dies while the server is away. The new server process has no clock
// of the lease: it starts all durations anew, and gives the work to another
// exactly retention and guard after it first looked. INV-20.
func TestServerRestartStartsLeaseDurationsAnew(t *testing.T) {
	harness.Test(t, harness.Options{Script: longSteps}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		w.Edge("b")
		started(t, w, 1)
		w.KillServer()
		w.KillEdge("a")
		time.Sleep(time.Minute) // longer than retention and guard
		restarted := time.Now()
		w.StartServer()
		alice.Completed(turn)
		over := alice.EventAt(session, "attempt.ended", "INTERRUPTED")
		if early := over.Sub(restarted); early < retention+execution.LeaseGuard || early > retention+execution.LeaseGuard+3*time.Second {
			t.Errorf("the attempt was given up %v after the restart", early)
		}
		looked := over.Add(-retention - execution.LeaseGuard)
		moved := w.Log.Find(harness.Server, "attempt moved", "state", "SUSPECT")
		if len(moved) != 1 {
			t.Fatalf("suspected %d times", len(moved))
		}
		w.Exactly("the attempt was suspected", moved[0].At, looked.Add(ttl))
	})
}

// A daemon that restarts finds its supervisor again; the attempt does not notice.
// INV-14.
func TestDaemonRestartWithARunningAttempt(t *testing.T) {
	harness.Test(t, harness.Options{Script: longSteps}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		a := w.Edge("a")
		started(t, w, 2)
		a.StopDaemon()
		time.Sleep(2 * time.Second)
		if n := a.Supervisors(); n != 1 {
			t.Fatalf("%d supervisors run without a daemon", n)
		}
		a.StartDaemon()
		sameAttempt(t, w, alice, session, turn)
	})
}

// A broker that restarts ends the calls it had open and refuses budget slices of
// its earlier process; the loop asks again and the turn goes on. INV-19.
func TestBrokerRestartWithARunningAttempt(t *testing.T) {
	harness.Test(t, harness.Options{Script: longSteps}, func(t *testing.T, w *harness.World) {
		alice, session, turn := coding(t, w)
		started(t, w, 2)
		w.KillBroker()
		time.Sleep(500 * time.Millisecond)
		w.StartBroker()
		sameAttempt(t, w, alice, session, turn)
	})
}

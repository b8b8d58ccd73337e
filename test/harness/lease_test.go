package harness_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"bivouac/edge/lease"
	"bivouac/server/execution"
	"bivouac/test/harness"
)

// sleeper is a model that runs the command a prompt names and then says so.
const sleeper = `
rule "run" {
  when {
    user_matches = "run (?P<line>.+)"
    results      = 0
  }
  call "shell" {
    arguments = { command = user.line }
  }
}
rule "ran" {
  when {
    user_contains = "run"
    result_of     = "shell"
  }
  text = "It said: ${last_result}"
}
`

// renew is how the server's log names a renewal.
const renew = "bivouac.runner.v1.RunnerService/Renew"

// running starts a turn that runs one command on edge "a", and waits until it
// runs there.
func running(t *testing.T, w *harness.World, line string) (alice *harness.Person, session, turn string) {
	t.Helper()
	alice = w.Person("alice")
	w.Edge("a")
	alice.Apply(coder)
	session = alice.Open("coder")
	turn = alice.Submit(session, "m1", "run "+line)
	w.Until("the command runs", time.Minute, func() bool { return len(w.Log.Find("a", "command started")) > 0 })
	return alice, session, turn
}

// renewed waits until the server has answered a renewal of edge "a" and the
// answer is there, and returns when the edge had sent it.
func renewed(t *testing.T, w *harness.World) (sent time.Time) {
	t.Helper()
	before := len(w.Log.Calls(harness.Server, renew))
	var calls []harness.Line
	w.Until("a lease is renewed", ttl, func() bool {
		calls = w.Log.Calls(harness.Server, renew)
		return len(calls) > before
	})
	time.Sleep(2 * harness.Latency)
	return calls[len(calls)-1].At.Add(-harness.Latency)
}

func state(t *testing.T, p *harness.Person, turn string, attempt int) string {
	t.Helper()
	all := p.Attempts(turn)
	if len(all) <= attempt {
		t.Fatalf("%s has %d attempts", turn, len(all))
	}
	return all[attempt].GetState()
}

// Leases are renewed exactly every third of their authority ttl, counted from
// when each renewal was sent. INV-20.
func TestLeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 40s")
		alice.Completed(turn)
		claimed := alice.EventAt(session, "attempt.claimed", "")
		renewals := w.Log.Calls(harness.Server, renew)
		if len(renewals) != 20 {
			t.Errorf("%d renewals in 40 s, want one each 2 s", len(renewals))
		}
		for i, r := range renewals {
			w.Exactly(fmt.Sprintf("renewal %d", i+1), r.At, claimed.Add(time.Duration(i+1)*lease.RenewIn(ttl)))
		}
		if moves := w.Log.Find(harness.Server, "attempt moved"); len(moves) != 0 {
			t.Errorf("a renewed attempt was moved: %v", moves)
		}
	})
}

// frozenAt is when edge "a" froze its one attempt.
func frozenAt(t *testing.T, w *harness.World) time.Time {
	t.Helper()
	frozen := w.Log.Find("a", "the attempt lost its authority and is frozen")
	if len(frozen) != 1 {
		t.Fatalf("the attempt was frozen %d times", len(frozen))
	}
	return frozen[0].At
}

// A machine that is cut off freezes its work exactly when its authority ends, and
// kills it exactly when its retention does. The server suspects it one packet
// after the first, calls the attempt interrupted one packet and the guard after
// the second, and places the next one on the other machine in the same instant.
// INV-3, INV-14, INV-20.
func TestCutOffMachineLosesTheWorkToTheOther(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 1m")
		w.Edge("b")
		sent := renewed(t, w)
		answered := sent.Add(harness.Latency)
		w.Partition("a")

		w.SleepUntil(sent.Add(ttl))
		w.Exactly("the attempt was frozen", frozenAt(t, w), sent.Add(ttl))
		if ended := w.Log.Find("a", "command ended"); len(ended) != 0 {
			t.Fatalf("the command was ended within its retention: %v", ended)
		}

		w.SleepUntil(answered.Add(ttl - time.Microsecond))
		if got := state(t, alice, turn, 0); got != "RUNNING" {
			t.Errorf("before the ttl the attempt is %s", got)
		}
		w.SleepUntil(answered.Add(ttl))
		if got := state(t, alice, turn, 0); got != "SUSPECT" {
			t.Errorf("after the ttl the attempt is %s", got)
		}

		over := answered.Add(retention + execution.LeaseGuard)
		w.SleepUntil(over.Add(-time.Microsecond))
		w.Exactly("the command was killed", killedAt(t, w), sent.Add(retention))
		if got := len(alice.Attempts(turn)); got != 1 || state(t, alice, turn, 0) != "SUSPECT" {
			t.Errorf("%d attempts before retention and guard are over", got)
		}
		w.SleepUntil(over)
		if got := state(t, alice, turn, 0); got != "INTERRUPTED" {
			t.Errorf("after retention and guard the attempt is %s", got)
		}
		w.Exactly("the attempt ended", alice.EventAt(session, "attempt.ended", "INTERRUPTED"), over)
		w.Exactly("the next one was queued", alice.EventAt(session, "attempt.queued", ""), over)

		done := alice.Completed(turn)
		// The offer takes one packet, the claim another.
		w.Exactly("the next one was claimed", alice.EventAt(session, "attempt.claimed", ""), over.Add(2*harness.Latency))
		if done.GetAnswer() != "It said: slept 1m\n" || len(done.GetAttempts()) != 2 || done.GetAttempts()[1].GetRunnerName() != "b" {
			t.Errorf("the turn ended as %v", done)
		}
		w.Heal("a")
		w.Until("a is tidy", time.Minute, func() bool { return len(w.Edge("a").Attempts()) == 0 }) // INV-18
		if n := len(w.Log.Find("a", "command started")); n != 1 {
			t.Errorf("the command ran %d times on a", n)
		}
	})
}

// A cut that is longer than the ttl, and shorter than the retention, costs the time
// that it took: the command stands still and goes on where it was, under the same
// fence, and nothing is moved or run again. INV-3, INV-14, INV-20.
func TestFrozenMachineGoesOn(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 30s")
		w.Edge("b")
		sent := renewed(t, w)
		w.Partition("a")
		w.SleepUntil(sent.Add(retention - 5*time.Second))
		w.Exactly("the attempt was frozen", frozenAt(t, w), sent.Add(ttl))
		if got := state(t, alice, turn, 0); got != "SUSPECT" {
			t.Errorf("before the cut ends the attempt is %s", got)
		}
		w.Heal("a")
		done := alice.Completed(turn)
		if len(done.GetAttempts()) != 1 || done.GetAnswer() != "It said: slept 30s\n" {
			t.Errorf("the turn ended as %v", done)
		}
		thawed := w.Log.Find("a", "the attempt has authority again and goes on")
		ran, ended := w.Log.Find("a", "command started"), w.Log.Find("a", "command ended")
		if len(thawed) != 1 || len(ran) != 1 || len(ended) != 1 {
			t.Fatalf("thawed %v, started %v, ended %v", thawed, ran, ended)
		}
		stood := thawed[0].At.Sub(frozenAt(t, w))
		w.Exactly("the command ended", ended[0].At, ran[0].At.Add(30*time.Second+stood))
		if got := state(t, alice, turn, 0); got != "SUCCEEDED" {
			t.Errorf("at the end the attempt is %s", got)
		}
		inOrder(t, alice, session, "shell")
		w.Until("a is tidy", time.Minute, func() bool { return len(w.Edge("a").Attempts()) == 0 }) // INV-18
	})
}

// A machine that cannot freeze kills exactly when its authority ends, and the work
// begins again elsewhere after retention and guard. INV-20.
func TestMachineWithoutAFreezerKills(t *testing.T) {
	o := harness.Options{Script: sleeper, NoFreezer: true}
	harness.Test(t, o, func(t *testing.T, w *harness.World) {
		alice, _, turn := running(t, w, "sleep 1m")
		w.Edge("b")
		sent := renewed(t, w)
		w.Partition("a")
		w.Exactly("the command was killed", killedAt(t, w), sent.Add(ttl))
		if done := alice.Completed(turn); len(done.GetAttempts()) != 2 || done.GetAttempts()[0].GetState() != "INTERRUPTED" {
			t.Errorf("the turn ended as %v", done)
		}
	})
}

// A cut that is shorter than the ttl costs nothing: nothing is suspected, nothing
// is moved, nothing is run again.
func TestShortCutCostsNothing(t *testing.T) {
	harness.Test(t, harness.Options{Script: sleeper}, func(t *testing.T, w *harness.World) {
		alice, session, turn := running(t, w, "sleep 30s")
		w.Edge("b")
		renewed(t, w)
		w.Partition("a")
		time.Sleep(3500 * time.Millisecond)
		w.Heal("a")
		done := alice.Completed(turn)
		if len(done.GetAttempts()) != 1 || done.GetAnswer() != "It said: slept 30s\n" {
			t.Errorf("the turn ended as %v", done)
		}
		if moves := w.Log.Find(harness.Server, "attempt moved"); len(moves) != 0 {
			t.Errorf("the attempt was moved: %v", moves)
		}
		inOrder(t, alice, session, "shell")
	})
}

// lost is a tool call whose end never reached the server: its machine was lost.
const lost = "lost"

// inOrder proves that what runners reported is in the session once and in order:
// each model call answered once, each tool call requested and finished once.
func inOrder(t *testing.T, p *harness.Person, session string, tools ...string) {
	t.Helper()
	var got []string
	for _, e := range p.EventsOf(session) {
		switch e.GetType() {
		case "model.called", "model.answered", "tool.requested", "tool.finished":
			got = append(got, e.GetType())
		}
	}
	var want []string
	for _, tool := range tools {
		want = append(want, "model.called", "model.answered", "tool.requested")
		if tool != lost {
			want = append(want, "tool.finished")
		}
	}
	want = append(want, "model.called", "model.answered")
	if !slices.Equal(got, want) {
		t.Errorf("the session has\n%v\nwant\n%v", got, want)
	}
}

package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// scribe is a model that writes one file and says what came of it.
const scribe = `
rule "write" {
  when { results = 0 }
  call "files_write" {
    arguments = { path = "notes/once.txt", content = "written\n" }
  }
}
rule "say" {
  when { result_of = "files_write" }
  text = "It came to: ${last_result}"
}
`

// Times of a device action: the profile's ttl, and how long an outcome is sought.
const (
	deviceTTL   = 15 * time.Second
	reconcileIn = 60 * time.Second
	poll        = time.Second // how often the server looks for what is overdue
)

// effectWithoutReport lets an approved write happen on the machine and loses its
// report: the cable is cut while the claim's answer is on its way.
func effectWithoutReport(t *testing.T, w *harness.World) (alice *harness.Person, session, turn string, claimed time.Time) {
	t.Helper()
	alice = w.Person("alice")
	a := w.Edge("a")
	alice.Apply(assistant)
	session = alice.Open("assistant")
	turn = alice.Submit(session, "m1", "write it")
	asked := alice.AwaitApproval()
	w.RestartServer() // what is asked survives, and is decided by what was shown
	a.AwaitConnected()
	if again := alice.AwaitApproval(); again.GetDigest() != asked.GetDigest() {
		t.Errorf("after a restart the approval binds %s, not %s", again.GetDigest(), asked.GetDigest())
	}
	alice.Decide(asked, true)
	decided := time.Now()
	claimed = decided.Add(2 * harness.Latency) // offer, claim
	w.SleepUntil(claimed.Add(harness.Latency / 2))
	w.Partition("a")
	w.SleepUntil(claimed.Add(2 * harness.Latency))
	if got := a.Read("once.txt"); got != "written\n" {
		t.Fatalf("the file holds %q: the effect did not happen before the cut", got)
	}
	w.Exactly("the action was claimed", alice.EventAt(session, "attempt.claimed", ""), claimed)
	return alice, session, turn, claimed
}

// The report of an effect is lost, and the machine comes back: the outcome is in
// its journal, nothing is done again. INV-5.
func TestLostReportIsFoundInTheJournal(t *testing.T) {
	harness.Test(t, harness.Options{Script: scribe}, func(t *testing.T, w *harness.World) {
		alice, _, turn, claimed := effectWithoutReport(t, w)
		w.SleepUntil(claimed.Add(deviceTTL - time.Microsecond))
		if got := alice.Turn(turn).GetState(); got != "RUNNING_ACTION" {
			t.Errorf("before the ttl the turn is %s", got)
		}
		w.SleepUntil(claimed.Add(deviceTTL))
		if got := alice.Turn(turn).GetState(); got != "WAITING_RECONCILIATION" {
			t.Errorf("after the ttl the turn is %s", got)
		}
		w.Heal("a")
		done := alice.Completed(turn)
		if strings.Contains(done.GetAnswer(), "nknown") || len(unknown(t, alice)) != 0 {
			t.Errorf("a known outcome is shown as %q", done.GetAnswer())
		}
		if n := len(w.Log.Calls(harness.Server, "bivouac.runner.v1.RunnerService/Claim", "code", "ok")); n != 2 {
			t.Errorf("%d attempts were claimed, want two: the digest and the write", n)
		}
	})
}

// The machine stays away: when the time to reconcile is over the outcome is unknown, which the model is told, and the same effect is refused until a
// person has decided. What the machine reports later is evidence. INV-3, INV-5.
func TestOutcomeStaysUnknown(t *testing.T) {
	harness.Test(t, harness.Options{Script: scribe}, func(t *testing.T, w *harness.World) {
		alice, session, turn, claimed := effectWithoutReport(t, w)
		over := claimed.Add(deviceTTL + reconcileIn)
		w.SleepUntil(over.Add(-time.Microsecond))
		if got := alice.Turn(turn).GetState(); got != "WAITING_RECONCILIATION" {
			t.Errorf("before the time is over the turn is %s", got)
		}
		done := alice.Completed(turn)
		if late := alice.EventAt(session, "tool.unknown", "").Sub(over); late < 0 || late > poll {
			t.Errorf("the outcome was given up %v after the time was over", late)
		}
		if !strings.Contains(done.GetAnswer(), "nknown") {
			t.Errorf("the model was not told: %q", done.GetAnswer())
		}
		if n := len(unknown(t, alice)); n != 1 {
			t.Fatalf("%d actions are in the unknown inbox", n)
		}
		w.Heal("a")
		w.Until("the evidence is there", time.Minute, func() bool { return strings.Contains(unknown(t, alice)[0].GetEvidence(), "succeeded") })
		if got := alice.Turn(turn); !got.GetEndedAt().AsTime().Equal(done.GetEndedAt().AsTime()) || got.GetAnswer() != done.GetAnswer() {
			t.Errorf("the evidence moved the turn: %v", got)
		}
		// The same effect under a new name is refused.
		second := alice.Completed(alice.Submit(session, "m2", "write it again"))
		if !strings.Contains(second.GetAnswer(), "outcome_unknown") {
			t.Errorf("the same write again came to %q", second.GetAnswer())
		}
		if _, err := alice.Turns.ResolveUnknown(t.Context(), &apiv1.ResolveUnknownRequest{
			ActionId: unknown(t, alice)[0].GetAction().GetId(), Resolution: "happened"}); err != nil {
			t.Fatal(err)
		}
		third := alice.Submit(session, "m3", "write it once more")
		alice.Decide(alice.AwaitApproval(), true)
		if got := alice.Completed(third).GetAnswer(); strings.Contains(got, "nknown") {
			t.Errorf("after a person has decided it came to %q", got)
		}
	})
}

func unknown(t *testing.T, p *harness.Person) []*apiv1.UnknownAction {
	t.Helper()
	res, err := p.Turns.ListUnknown(t.Context(), &apiv1.ListUnknownRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetActions()
}

package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// soon checks that something happened at its deadline, never before, and at the
// latest when the server looked next.
func soon(t *testing.T, w *harness.World, what string, at, deadline time.Time) {
	t.Helper()
	if late := at.Sub(deadline); late < 0 || late > poll {
		t.Errorf("%s at %v, its deadline is %v", what, w.Since(at), w.Since(deadline))
	}
}

// Each state has one deadline: a turn that nobody takes fails, one that waits too
// long in the queue is cancelled, an approval that nobody gives expires and the
// model is told.
func TestEachStateHasItsDeadline(t *testing.T) {
	harness.Test(t, harness.Options{Script: scribe}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		lonely := strings.NewReplacer(`"coder"`, `"lonely"`, `"5m"`, `"30s"`, "max_queued   = 3", `queue_ttl = "20s"`).Replace(coder)
		alice.Apply(lonely)
		session := alice.Open("lonely")
		first, second := alice.Submit(session, "m1", "nobody takes this"), alice.Submit(session, "m2", "and this waits")
		asked := time.Now()
		if got := alice.Ended(second); got.GetState() != "CANCELLED" || got.GetReason() != "queue_deadline" {
			t.Errorf("the waiting turn ended as %s: %s", got.GetState(), got.GetReason())
		}
		soon(t, w, "the waiting turn was cancelled", alice.Turn(second).GetEndedAt().AsTime(), asked.Add(20*time.Second))
		if got := alice.Ended(first); got.GetState() != "FAILED" || got.GetReason() != "not_placed" {
			t.Errorf("the turn that nobody took ended as %s: %s", got.GetState(), got.GetReason())
		}
		soon(t, w, "the turn that nobody took failed", alice.Turn(first).GetEndedAt().AsTime(), asked.Add(30*time.Second))

		a := w.Edge("a")
		alice.Apply(strings.Replace(assistant, "  limits {", "  approvals { ttl = \"1m\" }\n  limits {", 1))
		session = alice.Open("assistant")
		turn := alice.Submit(session, "m1", "write it")
		expires := alice.AwaitApproval().GetExpiresAt().AsTime()
		w.Exactly("the approval expires", expires, alice.EventAt(session, "approval.requested", "").Add(time.Minute))
		got := alice.Completed(turn)
		soon(t, w, "the approval expired", alice.EventAt(session, "approval.decided", ""), expires)
		if !strings.Contains(got.GetAnswer(), "Nobody approved this call in time") || a.Read("once.txt") != "" { // INV-6
			t.Errorf("after it expired: answer %q, file %q", got.GetAnswer(), a.Read("once.txt"))
		}
	})
}

package harness_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/policy"
	"bivouac/test/harness"
)

const day = 24 * time.Hour

// evening is when the worlds of these tests begin.
const evening = day - 4*time.Minute

// days are when the next day of UTC begins, and the one after.
func days() (tomorrow, after time.Time) {
	tomorrow = time.Now().UTC().Truncate(day).Add(day)
	return tomorrow, tomorrow.Add(day)
}

// waitsUntil waits until explain says that a turn is kept by what was used on its day,
// and from when on it is not.
func waitsUntil(t *testing.T, w *harness.World, p *harness.Person, turn string, next time.Time) {
	t.Helper()
	said := ""
	w.Until("explain says until when it waits", time.Minute, func() bool {
		x, err := p.Turns.Explain(t.Context(), &apiv1.ExplainRequest{Id: turn})
		said = fmt.Sprint(x, err)
		return strings.Contains(said, "tokens were used today, at most 1 may be; a new day begins at "+next.Format(time.RFC3339))
	})
	if s := p.Turn(turn).GetState(); s != "QUEUED" && s != "RECEIVED" {
		t.Fatalf("%s is %s: %s", turn, s, said)
	}
}

// endedAt is when a turn ended, which for one of a single answer is soon after it began.
func endedAt(p *harness.Person, turn string) time.Time { return p.Turn(turn).GetEndedAt().AsTime() }

// A machine whose day is used up takes the turn that waits for it when the day of UTC
// is over, and not before; what it uses then is of the new day, which ends as well.
// INV-10.
func TestDayOfAMachineEnds(t *testing.T) {
	harness.Test(t, harness.Options{Script: talker, At: evening}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		w.EdgeWith("a", harness.EdgeOptions{Quota: owner.Quota{TokensPerDay: 1}})
		alice.Apply(coder)
		alice.Grant("coder")
		tomorrow, after := days()
		used := alice.Submit(alice.Open("coder"), "m1", "hello")
		alice.Completed(used)
		w.Until("its use is counted", time.Minute, func() bool { return alice.Turn(used).GetUsageFinal() })

		kept := alice.Submit(alice.Open("coder"), "m1", "hello again")
		waitsUntil(t, w, alice, kept, tomorrow)
		alice.Completed(kept)
		if at := endedAt(alice, kept); at.Before(tomorrow) || at.After(tomorrow.Add(time.Minute)) {
			t.Errorf("the day ends at %v, and the turn that waited for it at %v", tomorrow, at)
		}
		w.Until("its use is counted", time.Minute, func() bool { return alice.Turn(kept).GetUsageFinal() })

		next := alice.Submit(alice.Open("coder"), "m1", "and again")
		waitsUntil(t, w, alice, next, after)
		if got := alice.Ended(next); got.GetState() != "FAILED" || got.GetReason() != "not_placed" || !strings.Contains(got.GetMessage(), after.Format(time.RFC3339)) {
			t.Errorf("it may wait for a machine for five minutes, and ended as %s: %s: %s", got.GetState(), got.GetReason(), got.GetMessage())
		}
	})
}

// What a person asks for when their day is used up is refused, and what waits in the
// queue begins when the next day does; then that day is used up.
func TestDayOfAPersonEnds(t *testing.T) {
	quotas := policy.Quotas{Default: map[string]policy.Quota{policy.ScopePrincipal: {MaxTokensPerDay: 1}}}
	harness.Test(t, harness.Options{Script: talker, Quotas: quotas, At: evening}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		alice.Apply(assistant)
		alice.Grant("assistant")
		tomorrow, after := days()
		session, other := alice.Open("assistant"), alice.Open("assistant")
		submit := func(message string) (string, error) {
			res, err := alice.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: other, MessageId: message, Prompt: "hello"})
			return res.GetTurn().GetId(), err
		}
		refusedUntil := func(message string, next time.Time) {
			t.Helper()
			_, err := submit(message)
			var e *protocol.Error
			if !errors.As(err, &e) || e.Code != protocol.CodeBudgetExhausted || !strings.Contains(e.Message, next.Format(time.RFC3339)) {
				t.Fatalf("with the day used up: %v", err)
			}
			if at := time.Now().Add(e.RetryAfter); at.Before(next.Add(-time.Second)) || at.After(next.Add(time.Second)) {
				t.Errorf("it may be sent again at %v, and the day ends at %v", at, next)
			}
		}
		used, kept := alice.Submit(session, "m1", "hello"), alice.Submit(session, "m2", "hello again")
		if got := alice.Ended(used); got.GetInputTokens()+got.GetOutputTokens() < 1 {
			t.Fatalf("it ended as %s: %s, with no use", got.GetState(), got.GetReason())
		}
		waitsUntil(t, w, alice, kept, tomorrow)
		refusedUntil("m1", tomorrow)

		alice.Ended(kept)
		if at := endedAt(alice, kept); at.Before(tomorrow) || at.After(tomorrow.Add(time.Minute)) {
			t.Errorf("the day ends at %v, and the turn that waited for it at %v", tomorrow, at)
		}
		refusedUntil("m1", after)
	})
}

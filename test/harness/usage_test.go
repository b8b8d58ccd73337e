package harness_test

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// What was streamed before a turn ended is paid for: the turn shows it, says so
// once in its events, and until the broker has settled it, that it is not final.
// INV-19.
func TestCutStreamIsPaid(t *testing.T) {
	cancel := func(t *testing.T, alice *harness.Person, _ *apiv1.Grant, turn string) {
		if _, err := alice.Turns.CancelTurn(t.Context(), &apiv1.CancelTurnRequest{TurnId: turn}); err != nil {
			t.Fatal(err)
		}
	}
	revoke := func(t *testing.T, alice *harness.Person, g *apiv1.Grant, _ string) {
		if _, err := alice.Grants.RevokeGrant(t.Context(), &apiv1.RevokeGrantRequest{GrantId: g.GetId(), Reason: "lost"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, definition, agent, state string
		cut                            func(*testing.T, *harness.Person, *apiv1.Grant, string)
	}{
		{"cancelled in the server's loop", assistant, "assistant", "CANCELLED", cancel},
		{"cancelled on a runner", coder, "coder", "CANCELLED", cancel},
		{"revoked in the server's loop", assistant, "assistant", "FAILED", revoke},
		{"revoked on a runner", coder, "coder", "FAILED", revoke},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Test(t, harness.Options{Script: talker}, func(t *testing.T, w *harness.World) {
				if c.agent == "coder" {
					w.Edge("a")
				}
				alice, grant, session, turn := streaming(t, w, c.definition, c.agent)
				c.cut(t, alice, grant, turn)
				if got := alice.Ended(turn); got.GetState() != c.state {
					t.Fatalf("it ended as %s: %s", got.GetState(), got.GetMessage())
				}
				paid := final(t, w, alice, session, turn)
				if paid.GetModelCalls() != 1 {
					t.Errorf("%d model calls", paid.GetModelCalls())
				}

				// Its twin is answered, and paid for in full.
				if c.state == "CANCELLED" {
					twin := alice.Submit(session, "m2", "hello")
					alice.Completed(twin)
					final(t, w, alice, session, twin)
				}
			})
		})
	}
}

// final waits for what a turn used, and holds its event against it.
func final(t *testing.T, w *harness.World, alice *harness.Person, session, turn string) (paid *apiv1.Turn) {
	t.Helper()
	w.Until("what it used is final", time.Minute, func() bool { paid = alice.Turn(turn); return paid.GetUsageFinal() })
	if paid.GetInputTokens() == 0 || paid.GetOutputTokens() == 0 || paid.GetCostMicroUsd() == 0 {
		t.Errorf("%s used %d tokens in, %d out, %d", turn, paid.GetInputTokens(), paid.GetOutputTokens(), paid.GetCostMicroUsd())
	}
	told := 0
	for _, e := range alice.EventsOf(session) {
		if e.GetTurnId() != turn || e.GetType() != "usage.settled" {
			continue
		}
		told++
		var d map[string]string
		if err := json.Unmarshal([]byte(e.GetData()), &d); err != nil || d["cost_micro_usd"] != strconv.FormatInt(paid.GetCostMicroUsd(), 10) {
			t.Errorf("the event says %s (%v), the turn %d", e.GetData(), err, paid.GetCostMicroUsd())
		}
	}
	if told != 1 {
		t.Errorf("it was told %d times", told)
	}
	return paid
}

package session

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// TestWholeTurns walks the paths of a turn's life that users see.
func TestWholeTurns(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		end    TurnState
	}{
		"answer":          {"activate run complete", Completed},
		"tool":            {"activate run act dispatch settle complete", Completed},
		"two calls":       {"activate run act dispatch next_call dispatch settle complete", Completed},
		"approved":        {"activate run act ask_approval approve settle complete", Completed},
		"pre-image first": {"activate run act dispatch next_call ask_approval approve settle complete", Completed},
		"denied":          {"activate run act ask_approval refuse complete", Completed},
		"refused at once": {"activate run act refuse complete", Completed},
		"queue deadline":  {"cancel", Cancelled},
		"not placed":      {"activate fail", Failed},
		"runner lost":     {"activate run doubt replace run complete", Completed},
		"runner is back":  {"activate run doubt reconcile complete", Completed},
		"effect unknown":  {"activate run act dispatch doubt give_up", Unknown},
		"evidence found":  {"activate run act dispatch doubt next_call refuse complete", Completed},
	} {
		turn := Turn{ID: "trn_x", State: Queued, Attempts: 1}
		for ev := range strings.FieldsSeq(c.events) {
			next, err := turn.Step(TurnEvent(ev), now)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			turn = next
		}
		if turn.State != c.end || turn.EndedAt != now || !turn.ReconcileDeadline.IsZero() {
			t.Errorf("%s ended as %+v, want %s", name, turn, c.end)
		}
	}
}

func TestTurnInstants(t *testing.T) {
	turn := Turn{ID: "trn_x", State: Queued, ModelCall: "cal_x", Attempts: 1}
	turn = must[Turn](t)(turn.Step(TurnActivate, now))
	if turn.ActivatedAt != now || !turn.EndedAt.IsZero() {
		t.Errorf("after activation: %+v", turn)
	}
	turn = must[Turn](t)(turn.Step(TurnRun, now))
	turn = must[Turn](t)(turn.Step(TurnDoubt, now))
	if turn.ReconcileDeadline != now.Add(ReconcileWithin) {
		t.Errorf("the reconcile deadline is %s", turn.ReconcileDeadline)
	}
	ended := must[Turn](t)(turn.End(TurnFail, "runner_lost", "The machine is gone.", now))
	if ended.Reason != "runner_lost" || ended.Message == "" || ended.ModelCall != "" || !ended.ReconcileDeadline.IsZero() {
		t.Errorf("after the end: %+v", ended)
	}
	if kept, err := turn.End(TurnReconcile, "x", "", now); err == nil || kept.State != WaitingReconciliation {
		t.Errorf("an end by a step that ends nothing: %+v, %v", kept, err)
	}
}

// TestReplaceOnce: an interrupted turn gets one new attempt, not two.
func TestReplaceOnce(t *testing.T) {
	turn := Turn{ID: "trn_x", State: WaitingReconciliation, Attempts: 1}
	if next, err := turn.Step(TurnReplace, now); err != nil || next.State != Received {
		t.Errorf("first: %s, %v", next.State, err)
	}
	turn.Attempts = MaxAttempts
	if next, err := turn.Step(TurnReplace, now); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || next.State != WaitingReconciliation {
		t.Errorf("second: %s, %v", next.State, err)
	}
}

// TestRedispatch: only an idempotent action is sent again. INV-5.
func TestRedispatch(t *testing.T) {
	for recovery, want := range map[runtimev1.Recovery]protocol.Code{
		runtimev1.Recovery_RECOVERY_IDEMPOTENT:  "",
		runtimev1.Recovery_RECOVERY_INSPECTABLE: protocol.CodeOutcomeUnknown,
		runtimev1.Recovery_RECOVERY_OPAQUE:      protocol.CodeOutcomeUnknown,
		runtimev1.Recovery_RECOVERY_UNSPECIFIED: protocol.CodeOutcomeUnknown,
	} {
		sent := now.Add(-time.Minute)
		a := Action{ID: "act_x", State: Reconciling, Recovery: recovery, DispatchedAt: sent, IdempotencyKey: "k"}
		next, err := a.Step(ActionRedispatch, now)
		if protocol.CodeOf(err) != want {
			t.Errorf("%s: %v", recovery, err)
		}
		if next.DispatchedAt != sent || next.IdempotencyKey != "k" || (err == nil) != (next.State == Dispatched) {
			t.Errorf("%s: %+v", recovery, next)
		}
	}
}

func TestUnknownAction(t *testing.T) {
	for effect, ends := range map[runtimev1.Effect]bool{
		runtimev1.Effect_EFFECT_READ: false, runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL: false,
		runtimev1.Effect_EFFECT_IRREVERSIBLE_LOCAL: false, runtimev1.Effect_EFFECT_OUTBOUND: true,
		runtimev1.Effect_EFFECT_DESTRUCTIVE: true,
	} {
		a := Action{ID: "act_x", State: Reconciling, Effect: effect}
		if a.EndsTurn() || a.Unresolved() {
			t.Errorf("%s: an open action counts as unknown", effect)
		}
		a = must[Action](t)(a.Step(ActionGiveUp, now))
		if a.EndsTurn() != ends || !a.Unresolved() || a.OutcomeAt != now {
			t.Errorf("%s: %+v ends the turn: %t", effect, a, a.EndsTurn())
		}
		a.Resolution = "happened"
		if a.Unresolved() || a.State != ActionUnknown {
			t.Errorf("%s: a resolution must settle the inbox and change no state", effect)
		}
	}
}

func TestSessionDue(t *testing.T) {
	s := Session{State: Open, LastActiveAt: now, IdleTTL: time.Hour, ExpiresAt: now.Add(24 * time.Hour)}
	for _, c := range []struct {
		at   time.Time
		due  bool
		what string
	}{
		{now.Add(time.Hour - 1), false, "before idle"}, {now.Add(time.Hour), true, "idle"},
	} {
		if s.Due(c.at) != c.due {
			t.Errorf("%s: due is %t", c.what, !c.due)
		}
	}
	s.IdleTTL = 0
	if s.Due(now.Add(24*time.Hour-1)) || !s.Due(now.Add(24*time.Hour)) {
		t.Error("the maximum lifetime is not the end")
	}
	s.State = Closing
	if s.Due(now.Add(48 * time.Hour)) {
		t.Error("a closing session expires")
	}
}

// must is the record after a step that has to be legal.
func must[R any](t *testing.T) func(R, error) R {
	return func(next R, err error) R {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
}

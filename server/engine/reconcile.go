package engine

import (
	"context"
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// doubt says that an action left and its outcome is not known. From here
// evidence is sought until the deadline. INV-5.
func (w *turnTx) doubt(a session.Action, why string) (session.Action, error) {
	if a.State == session.Reconciling {
		return a, nil
	}
	next, err := a.Step(session.ActionDoubt, w.tx.Now)
	if err != nil {
		return a, err
	}
	next.Evidence = joinEvidence(a.Evidence, why)
	if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
		return a, err
	}
	w.afterCommit(func() {
		w.e.doubts.Ring()
		w.e.cfg.Log.Warn("action in doubt", "turn", a.Turn, "action", a.ID, "tool", a.Tool, "reason", why)
	})
	if w.turn.State != session.RunningAction {
		return next, nil
	}
	if err := w.step(session.TurnDoubt); err != nil {
		return next, err
	}
	w.moved("outcome of " + a.Alias + " is not known: " + why)
	return next, nil
}

// giveUp settles an action for which no evidence is left. What only reads has
// changed nothing, so it failed; anything else is UNKNOWN for good. INV-5.
func (w *turnTx) giveUp(a session.Action, why string) error {
	reads := a.Effect == runtimev1.Effect_EFFECT_READ
	if a.Attempt != "" {
		attempt, err := w.tx.Attempt(a.Attempt)
		if err != nil {
			return err
		}
		if !attempt.State.Terminal() {
			ev := execution.AttemptGiveUp
			if reads || !attempt.State.Held() {
				ev = execution.AttemptInterrupt
			}
			if err := w.endAttempt(attempt, ev, reasonInterrupted, why); err != nil {
				return err
			}
		}
	}
	if reads {
		return w.settle(a, a.Fence, outcome{event: session.ActionFail, evidence: why, result: refuse(a.CallID, statusFailed,
			protocol.CodeUnavailable, "No answer came in time. It only reads, so nothing was changed; it may be called again.")})
	}
	return w.settle(a, a.Fence, unknownOutcome(a, why))
}

// doubtful is an action whose outcome is sought, and its turn.
type doubtful struct {
	action session.Action
	turn   session.Turn
}

// deadline until which evidence is sought. The turn may have ended meanwhile.
func (d doubtful) deadline() time.Time {
	if !d.turn.ReconcileDeadline.IsZero() {
		return d.turn.ReconcileDeadline
	}
	from := d.action.DispatchedAt
	if d.turn.EndedAt.After(from) {
		from = d.turn.EndedAt
	}
	return from.Add(session.ReconcileWithin)
}

// tickReconcile seeks the outcome of what left and did not come back: calls that
// an earlier process had under way, answers that got lost, machines that are
// gone. What is done in each case is execution.Recovery's to say.
func (e *Engine) tickReconcile(ctx context.Context) (bool, error) {
	var open []doubtful
	err := e.cfg.Store.View(ctx, store.AsLoop("reconcile"), func(tx *store.Tx) error {
		actions, err := tx.ActionsIn(store.All, session.Dispatched, session.Reconciling)
		if err != nil {
			return err
		}
		for _, a := range actions {
			t, err := tx.Turn(a.Turn)
			if err != nil {
				return err
			}
			if e.owned.has(t.ID) || t.State.Terminal() && e.inherits(t) {
				open = append(open, doubtful{a, t})
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return each(open, func(d doubtful) (bool, error) { return e.reconcile(ctx, d) })
}

// inherits reports an ended turn whose loose ends are this replica's: its own, or
// those of a replica that is gone. Two that both think so do no harm: every write
// is guarded.
func (e *Engine) inherits(t session.Turn) bool {
	return t.Owner == e.cfg.Replica || e.replicas.gone(t.Owner)
}

// cell is the case that an open action is in, by what is known here and now.
func (e *Engine) cell(d doubtful, now time.Time) execution.Cell {
	c := execution.Cell{Class: classOf(d.action, d.turn), Point: execution.AtSent, Knower: execution.Nobody}
	if d.turn.State.Terminal() {
		c.Point = execution.AtEnded
	}
	device := d.action.Placement == runtimev1.Placement_PLACEMENT_DEVICE
	switch {
	case d.action.State == session.Dispatched && (device || e.calls.has(d.action.ID)):
		c.Knower = execution.Here // its attempt or its op answers
	case d.action.State == session.Reconciling && !now.Before(d.deadline()):
		c.Point = execution.AtOverdue
	case device:
		c.Knower = execution.MachineAway // it may still come back with its journal
	}
	return c
}

// classOf an action. A read that cannot be repeated is asked about like an opaque
// effect; given up, it failed like every read. What says that it can be looked up
// and does not say how is opaque.
func classOf(a session.Action, t session.Turn) execution.Class {
	switch a.Recovery {
	case runtimev1.Recovery_RECOVERY_IDEMPOTENT:
		if a.Effect == runtimev1.Effect_EFFECT_READ {
			return execution.Reads
		}
		return execution.Idempotent
	case runtimev1.Recovery_RECOVERY_INSPECTABLE:
		if a.Placement == runtimev1.Placement_PLACEMENT_DEVICE || hasLookup(a, t) {
			return execution.Inspectable
		}
	}
	return execution.Opaque
}

// reconcile does for one open action what the table says. INV-5.
func (e *Engine) reconcile(ctx context.Context, d doubtful) (bool, error) {
	a := d.action
	cell := e.cell(d, time.Now())
	remedy, ok := execution.Recover(cell)
	if !ok {
		return false, protocol.Errorf(protocol.CodeInternal, "action %s is in a case that the recovery table does not have: %s", a.ID, cell)
	}
	if a.State == session.Dispatched && remedy != execution.Await {
		return true, e.onAction(ctx, a, func(w *turnTx, a session.Action) error {
			_, err := w.doubt(a, "the server stopped while it was under way")
			return err
		})
	}
	switch remedy {
	case execution.Resend:
		return e.resend(ctx, a)
	case execution.Ask:
		return e.ask(a), nil
	case execution.Refute, execution.GiveUp:
		why := "no evidence came within " + session.ReconcileWithin.String()
		if cell.Point == execution.AtEnded {
			why = "its turn ended, and nobody waits for what it reads"
		}
		return true, e.onAction(ctx, a, func(w *turnTx, a session.Action) error { return w.giveUp(a, why) })
	}
	return false, nil
}

// ask asks the broker's call log, and after it the inspector, one at a time and
// after growing pauses.
func (e *Engine) ask(a session.Action) bool {
	op := lookupOp(a.ID)
	if e.busy(op) || e.busy(inspectOp(a.ID)) || !e.pauses.over(op, time.Now()) {
		return false
	}
	return e.startLookup(a)
}

// onAction changes an action and its turn, if the action is as it was seen.
func (e *Engine) onAction(ctx context.Context, seen session.Action, fn func(w *turnTx, a session.Action) error) error {
	return e.onTurn(ctx, "reconcile", seen.Turn, func(w *turnTx) error {
		a, err := w.tx.Action(seen.ID)
		if err != nil {
			return err
		}
		mine := w.turn.Owner == e.cfg.Replica || w.turn.State.Terminal() && e.inherits(w.turn)
		if a.State != seen.State || a.Fence != seen.Fence || !mine {
			return protocol.Errorf(protocol.CodeConflict, "action %s moved on", a.ID)
		}
		return fn(w, a)
	})
}

// resend sends an idempotent action again, under the same key and a new fence:
// if it happened, it does not happen a second time. INV-5.
func (e *Engine) resend(ctx context.Context, seen session.Action) (bool, error) {
	op := invokeOp(seen.ID)
	if e.busy(op) || !e.pauses.over(op, time.Now()) {
		return false, nil
	}
	e.pauses.again(op, time.Now(), minAskAgain, maxAskAgain)
	var send *gatewayCall
	e.calls.keep(seen.ID)
	err := e.onAction(ctx, seen, func(w *turnTx, a session.Action) error {
		next, err := a.Step(session.ActionRedispatch, w.tx.Now)
		if err != nil {
			return err
		}
		next.Fence = w.turn.OwnerFence
		if !sentBefore(next) {
			next.Evidence = joinEvidence(next.Evidence, sentAgain)
		}
		send, err = w.prepareCall(next)
		var t *taken
		if errors.As(err, &t) {
			send = nil
			return w.endFailed(t.reason, t.message)
		} else if err != nil {
			send = nil
			return w.withoutGrant(a, err)
		}
		return w.tx.SaveAction(next, a.State, a.Fence)
	})
	if err != nil || send == nil {
		e.calls.forget(seen.ID)
		return err == nil, err
	}
	return e.startCall(send), nil
}

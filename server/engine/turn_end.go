package engine

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/server/capability"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// Reasons of turns and attempts that the engine ends. They are stable text.
const (
	reasonCancelled      = "cancelled"
	reasonQueueDeadline  = "queue_deadline"
	reasonNotPlaced      = "not_placed"
	reasonInterrupted    = protocol.ResultInterrupted
	reasonSessionClosed  = "session_closed"
	reasonEnded          = "session_ended"
	reasonGrant          = loop.ReasonGrant
	reasonApprovalDenied = "approval_denied"
	reasonPolicy         = "policy_denied"
	reasonAgent          = "invalid_agent"
	reasonUnknown        = "outcome_unknown"
	reasonOwner          = "owner_denied"
)

// end ends the turn and everything that worked for it, in this transaction: open
// approvals, actions that did not leave, the attempt, the budget slice; and it
// asks for the cleanup of the rest. INV-18. An action that left keeps its own
// life until its outcome is known or given up. INV-5.
func (w *turnTx) end(ev session.TurnEvent, reason, message string) error {
	if w.turn.State != w.prior {
		if err := w.flush(); err != nil {
			return err
		}
	}
	next, err := w.turn.End(ev, reason, message, w.tx.Now)
	if err != nil {
		return err
	}
	call := w.turn.ModelCall
	w.turn, w.dirty = next, true
	if err := w.flush(); err != nil {
		return err
	}
	for _, release := range []func() error{w.releaseApprovals, w.releaseActions, w.releaseAttempt, w.releaseAuthority} {
		if err := release(); err != nil {
			return err
		}
	}
	data := usageOf(next)
	data["state"], data["reason"], data["message"] = string(next.State), reason, message
	w.event(session.Event{Type: session.TurnEnded, Data: data})
	if err := w.tally(); err != nil { // all of it may be settled already
		return err
	}
	id, state := w.turn.ID, next.State
	w.afterCommit(func() {
		w.e.cfg.Log.Info("turn ended", "turn", id, "state", state, "reason", reason)
		w.e.owned.forget(id)
		if call != "" {
			w.e.cfg.Ops.Stop(modelOp(call))
		}
	})
	return nil
}

// endCancelled ends whatever state the turn is in, except the terminal ones.
func (w *turnTx) endCancelled(reason, message string) error {
	return w.end(session.TurnCancel, reason, message)
}

// endFailed ends an active turn; one that still waits can only be cancelled.
func (w *turnTx) endFailed(reason, message string) error {
	if w.turn.State == session.Queued {
		return w.end(session.TurnCancel, reason, message)
	}
	return w.end(session.TurnFail, reason, message)
}

// endUnknown ends the turn over an effect that may have happened. INV-5.
func (w *turnTx) endUnknown(message string) error {
	if w.turn.State != session.WaitingReconciliation {
		if err := w.step(session.TurnDoubt); err != nil {
			return err
		}
	}
	return w.end(session.TurnGiveUp, reasonUnknown, message)
}

func (w *turnTx) releaseApprovals() error {
	approvals, err := w.tx.ApprovalsOfTurn(w.turn.ID)
	if err != nil {
		return err
	}
	for _, a := range approvals {
		if a.State.Terminal() {
			continue
		}
		next, err := a.Step(session.ApprovalCancel, w.tx.Now)
		if err != nil {
			return err
		}
		if err := w.tx.SaveApproval(next, a.State); err != nil {
			return err
		}
		w.event(session.Event{Type: session.ApprovalDecided, Action: a.Action, Approval: a.ID, Data: map[string]string{"state": string(next.State)}})
	}
	return nil
}

func (w *turnTx) releaseActions() error {
	actions, err := w.tx.ActionsOfTurn(w.turn.ID)
	if err != nil {
		return err
	}
	for _, a := range actions {
		if err := w.releaseAction(a); err != nil {
			return err
		}
	}
	return nil
}

// releaseAction cancels an action that is known not to have begun. One that left
// goes on: its machine is asked to stop, and its outcome is sought.
func (w *turnTx) releaseAction(a session.Action) error {
	ev := session.ActionCancel
	switch a.State {
	case session.Intended, session.AwaitingApproval:
	case session.Dispatched:
		begun := true
		if a.Attempt != "" {
			var err error
			if begun, err = w.stopAttempt(a.Attempt, "its turn ended"); err != nil {
				return err
			}
		}
		if begun {
			ev = session.ActionDoubt
		}
	default:
		return nil
	}
	next, err := a.Step(ev, w.tx.Now)
	if err != nil {
		return err
	}
	if next.State.Terminal() {
		next.Code = string(protocol.CodeCancelled)
	}
	return w.tx.SaveAction(next, a.State, a.Fence)
}

// releaseAttempt ends the attempt of a runner-placed turn at once: its work is
// in a disposable workspace, and a late result is evidence only.
func (w *turnTx) releaseAttempt() error {
	if w.turn.Attempt == "" {
		return nil
	}
	a, err := w.tx.Attempt(w.turn.Attempt)
	if err != nil || a.State.Terminal() {
		return err
	}
	return w.endAttempt(a, execution.AttemptCancel, reasonCancelled, "its turn ended")
}

// endAttempt ends an attempt from the server's side: no capability of it is
// admitted again, its runner is told, and the cleanup is asked for.
func (w *turnTx) endAttempt(a execution.Attempt, ev execution.AttemptEvent, reason, message string) error {
	next, err := a.End(ev, reason, message, w.tx.Now)
	if err != nil {
		return err
	}
	if err := w.tx.SaveAttempt(next, a.State, a.Fence); err != nil {
		return err
	}
	if err := w.attemptEnded(next); err != nil {
		return err
	}
	if a.Runner == "" {
		return nil
	}
	if err := w.mailStop(a, message); err != nil {
		return err
	}
	if !a.State.Held() {
		return nil
	}
	return w.cleanup(policy.CleanupAttempt, a.ID.String())
}

// attemptEnded is what follows from every end of an attempt.
func (w *turnTx) attemptEnded(a execution.Attempt) error {
	w.event(session.Event{Type: session.AttemptEnded, Attempt: a.ID, Data: map[string]string{
		"state": string(a.State), "reason": a.Reason, "runner": a.Runner.String()}})
	w.afterCommit(func() { w.e.leases.forget(a.ID) })
	if a.Fence == 0 || a.SubjectKind != execution.SubjectTurn {
		return nil // nothing was minted for it
	}
	return w.floor(policy.FloorAttempt, a.ID.String())
}

// floor voids every capability of a subject that still lives.
func (w *turnTx) floor(kind policy.FloorKind, id string) error {
	_, err := w.tx.AddFloor(policy.Floor{Kind: kind, ID: id, Minimum: noFloor, At: w.tx.Now, ExpiresAt: w.tx.Now.Add(floorTTL)})
	return err
}

// floorTTL is how long a floor of something that ended must be known: no
// capability of it lives longer.
const floorTTL = 2 * capability.MaxTTL

// noFloor admits nothing.
const noFloor = 1<<63 - 1

func (w *turnTx) releaseAuthority() error {
	if w.turn.OwnerFence == 0 {
		return nil // never activated: nothing was minted
	}
	if err := w.floor(policy.FloorTurn, w.turn.ID.String()); err != nil {
		return err
	}
	if w.turn.Slice == "" {
		return nil // it waited for a person: the slice went before
	}
	return w.cleanup(policy.CleanupSlice, w.turn.Slice.String())
}

// cleanup asks, durably, for the removal of what the turn needed.
func (w *turnTx) cleanup(kind, subject string) error {
	return w.tx.InsertCleanup(policy.Cleanup{
		ID: newID[protocol.CleanupKind](w.e, w.tx.Now), Tenant: w.turn.Tenant, Kind: kind, Subject: subject,
		CreatedAt: w.tx.Now, NextAt: w.tx.Now,
	})
}

// moved notes a step that no other event tells.
func (w *turnTx) moved(why string) {
	data := map[string]string{"state": string(w.turn.State), "reason": why}
	if !w.turn.ReconcileDeadline.IsZero() {
		data["until"] = w.turn.ReconcileDeadline.UTC().Format(time.RFC3339)
	}
	w.event(session.Event{Type: session.TurnMoved, Data: data})
}

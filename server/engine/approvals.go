package engine

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// ApprovalDecision of a person. Digest is what they were shown.
type ApprovalDecision struct {
	Approval protocol.ApprovalID
	Digest   string
	Approve  bool
	Reason   string
}

// DecideApproval records the decision. The same decision again is harmless,
// another one is a conflict. INV-6.
func (e *Engine) DecideApproval(ctx context.Context, c store.Caller, p ApprovalDecision) (session.Approval, error) {
	var decided session.Approval
	var counts bool
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		counts = true
		a, err := tx.Approval(p.Approval)
		if err != nil {
			return err
		}
		if planted.Chosen == planted.Digest {
			p.Digest = a.Digest
		}
		if decidedSo(a.State, p.Approve) && a.Digest == p.Digest {
			decided, counts = a, false
			return nil
		}
		if a.State != session.ApprovalPending {
			return protocol.Errorf(protocol.CodeConflict, "approval %s cannot be decided any more: %s", a.ID, decidedWhy(tx, a))
		}
		decided, err = a.Decide(p.Approve, p.Digest, c.Principal(), p.Reason, tx.Now)
		if err != nil {
			return err
		}
		if err := tx.SaveApproval(decided, a.State); err != nil {
			return err
		}
		_, err = tx.AppendEvents(a.Session, session.Event{Type: session.ApprovalDecided, Turn: a.Turn, Action: a.Action,
			Approval: a.ID, Data: map[string]string{"state": string(decided.State), "by": c.Principal().String()}})
		return err
	})
	if err == nil && counts {
		e.cfg.Meter.Decided(string(decided.State), decided.DecidedAt.Sub(decided.CreatedAt))
	}
	return decided, err
}

// decidedSo reports whether the question has this answer already.
func decidedSo(s session.ApprovalState, approve bool) bool {
	if approve {
		return s == session.ApprovalApproved || s == session.ApprovalConsumed
	}
	return s == session.ApprovalDenied
}

// decidedWhy says in words why a question takes no answer, and what to do instead.
func decidedWhy(tx *store.Tx, a session.Approval) string {
	by := "somebody"
	if p, err := tx.Principal(a.DecidedBy); err == nil {
		by = p.Name
	}
	switch a.State {
	case session.ApprovalCancelled:
		if t, err := tx.Turn(a.Turn); err == nil && !t.State.Terminal() {
			return "it was taken back, as the machine that asked was lost and the call did not run; " +
				"`bivouac approvals` shows it when it is asked again"
		}
		return fmt.Sprintf("its turn %s has ended, and the call did not run; see `bivouac turns %s`", a.Turn, a.Turn)
	case session.ApprovalExpired:
		return fmt.Sprintf("its time ended at %s, and the call did not run; ask the agent again", a.ExpiresAt.UTC().Format(time.RFC3339))
	case session.ApprovalDenied:
		return fmt.Sprintf("it was denied by %s at %s; ask the agent again", by, a.DecidedAt.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("it was approved by %s at %s; stop what follows with `bivouac cancel %s`", by, a.DecidedAt.UTC().Format(time.RFC3339), a.Turn)
}

// askApproval stores the subject and the question. The turn waits without lease,
// capability, budget slice or op, and its wall time stands still meanwhile; the
// attempt of a runner-placed one is told to end. INV-7.
func (w *turnTx) askApproval(a session.Action) error {
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	a.State = session.AwaitingApproval
	if err := w.tx.InsertAction(a); err != nil {
		return err
	}
	ttl := narrowed(snap.Agent.Approvals.TTL, w.e.cfg.Limits.MaxApprovalWait)
	expires := w.tx.Now.Add(ttl)
	approval := session.Approval{
		ID: newID[protocol.ApprovalKind](w.e, w.tx.Now), Action: a.ID, Turn: a.Turn, Session: a.Session,
		Tenant: a.Tenant, Principal: a.Principal, State: session.ApprovalPending, Tool: a.Tool,
		Destination: a.Destination, Arguments: a.Arguments, CreatedAt: w.tx.Now, ExpiresAt: expires,
		Digest: a.Subject(snap.DataBoundary, snap.PolicyDigest, expires).Digest(),
	}
	if err := w.tx.InsertApproval(approval); err != nil {
		return err
	}
	if err := w.step(session.TurnAskApproval); err != nil {
		return err
	}
	if planted.Chosen != planted.Slice {
		if err := w.restSlice(); err != nil {
			return err
		}
	}
	w.turn.Deadline = w.turn.Deadline.Add(ttl)
	w.event(session.Event{Type: session.ApprovalAsked, Action: a.ID, Approval: approval.ID, Data: map[string]string{
		session.DataCallID: a.CallID, "tool": a.Tool, "digest": approval.Digest}})
	if w.turn.Placement == session.PlacementRunner {
		return w.park(a.CallID)
	}
	return nil
}

// resume lets the wall time run on: it stood still while a person thought.
func (w *turnTx) resume(a session.Approval) {
	if unused := a.ExpiresAt.Sub(w.tx.Now); unused > 0 {
		w.turn.Deadline = w.turn.Deadline.Add(-unused)
		w.touch()
	}
}

// tickApprovals carries decisions out: an approved one becomes a new action, a
// denied or expired one the model's result or the end of the turn, by policy.
func (e *Engine) tickApprovals(ctx context.Context) (bool, error) {
	var decided []protocol.TurnID
	var overdue []session.Approval
	err := e.cfg.Store.View(ctx, store.AsLoop("approvals"), func(tx *store.Tx) (err error) {
		if overdue, err = tx.ApprovalsPastExpiry(tickBatch); err != nil {
			return err
		}
		decided, err = e.decidedTurns(tx)
		return err
	})
	if err != nil {
		return false, err
	}
	expired, err := each(overdue, func(a session.Approval) (bool, error) { return true, e.expireApproval(ctx, a.ID) })
	if err != nil {
		return expired, err
	}
	carried, err := each(decided, func(id protocol.TurnID) (bool, error) { return e.carryDecision(ctx, id) })
	return expired || carried, err
}

// decidedTurns are the turns of this replica whose question has its answer, or
// lost the attempt that asked it.
func (e *Engine) decidedTurns(tx *store.Tx) (decided []protocol.TurnID, err error) {
	waiting, err := tx.ActionsIn(store.All, session.AwaitingApproval)
	if err != nil {
		return nil, err
	}
	for _, subject := range waiting {
		if !e.owned.has(subject.Turn) {
			continue // another replica's
		}
		approvals, err := tx.ApprovalsOfTurn(subject.Turn)
		if err != nil {
			return nil, err
		}
		for _, a := range approvals {
			if a.Action == subject.ID && a.State != session.ApprovalPending {
				decided = append(decided, subject.Turn)
			}
		}
		if lost, err := questionLost(tx, subject.Turn); err != nil {
			return nil, err
		} else if lost {
			decided = append(decided, subject.Turn)
		}
	}
	return decided, nil
}

func (e *Engine) expireApproval(ctx context.Context, id protocol.ApprovalID) error {
	var waited time.Duration
	err := e.cfg.Store.Update(ctx, store.AsLoop("approvals"), func(tx *store.Tx) error {
		waited = 0
		a, err := tx.Approval(id)
		if err != nil || a.State.Terminal() {
			return err
		}
		waited = tx.Now.Sub(a.CreatedAt)
		next, err := a.Step(session.ApprovalExpire, tx.Now)
		if err != nil {
			return err
		}
		if err := tx.SaveApproval(next, a.State); err != nil {
			return err
		}
		_, err = tx.AppendEvents(a.Session, session.Event{Type: session.ApprovalDecided, Turn: a.Turn, Action: a.Action,
			Approval: a.ID, Data: map[string]string{"state": string(next.State)}})
		return err
	})
	if err == nil && waited > 0 {
		e.cfg.Meter.Decided(string(session.ApprovalExpired), waited)
	}
	return err
}

// carryDecision carries out the decision that a waiting turn has, if any.
func (e *Engine) carryDecision(ctx context.Context, id protocol.TurnID) (worked bool, err error) {
	consumed := false
	err = e.onTurn(ctx, "approvals", id, func(w *turnTx) error {
		worked, consumed = false, false
		if w.turn.State != session.WaitingApproval {
			return nil
		}
		if lost, err := w.questionLost(); lost || err != nil {
			if err == nil {
				worked, err = w.askAgain()
			}
			return err
		}
		subject, approval, err := w.pendingSubject()
		if err != nil || approval.State == session.ApprovalPending {
			return err
		}
		if ready, err := w.restsForDecision(); err != nil || !ready {
			return err
		}
		if worked, err = w.wakeSlice(); err != nil || !worked {
			return err
		}
		w.resume(approval)
		if approval.State == session.ApprovalApproved {
			consumed = true
			return w.consume(subject, approval)
		}
		return w.refuseApproval(subject, approval)
	})
	if err == nil && consumed {
		fault.Here(fault.ServerApprovalConsumed)
	}
	return worked, err
}

// pendingSubject is the action that waits and the question that was asked.
func (w *turnTx) pendingSubject() (session.Action, session.Approval, error) {
	approvals, err := w.tx.ApprovalsOfTurn(w.turn.ID)
	if err != nil {
		return session.Action{}, session.Approval{}, err
	}
	for _, a := range approvals {
		subject, err := w.tx.Action(a.Action)
		if err != nil {
			return session.Action{}, session.Approval{}, err
		}
		if subject.State == session.AwaitingApproval {
			return subject, a, nil
		}
	}
	return session.Action{}, session.Approval{}, protocol.Errorf(protocol.CodeInternal, "turn %s waits for no approval", w.turn.ID)
}

// consume makes the new action that uses the approval up, under a higher fence.
// Its subject is digested again, from what is true now. INV-6.
func (w *turnTx) consume(subject session.Action, approval session.Approval) error {
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	if w.turn.OwnerFence, err = w.turn.OwnerFence.Next(w.tx.Epoch()); err != nil {
		return err
	}
	a := subject
	a.ID, a.State = newID[protocol.ActionKind](w.e, w.tx.Now), session.Intended
	a.Fence, a.Approval, a.IdempotencyKey, a.IntentAt = w.turn.OwnerFence, approval.ID, a.ID.String(), w.tx.Now
	if err := w.tx.InsertAction(a); err != nil {
		return err
	}
	digest := a.Subject(snap.DataBoundary, snap.PolicyDigest, approval.ExpiresAt).Digest()
	if _, err := approval.Consume(a.ID, digest, w.tx.Now); err != nil {
		return err
	}
	if err := w.tx.ConsumeApproval(approval.ID, a.ID, digest); err != nil {
		return err
	}
	old, err := subject.Step(session.ActionSupersede, w.tx.Now)
	if err != nil {
		return err
	}
	old.SupersededBy = a.ID
	if err := w.tx.SaveAction(old, subject.State, subject.Fence); err != nil {
		return err
	}
	w.event(session.Event{Type: session.ApprovalUsed, Action: a.ID, Approval: approval.ID,
		Data: map[string]string{session.DataCallID: a.CallID, "replaces": subject.ID.String()}})
	if err := w.step(session.TurnApprove); err != nil {
		return err
	}
	return nil
}

// refuseApproval ends the subject; the model is told, or the turn ends, as the
// agent's policy says.
func (w *turnTx) refuseApproval(subject session.Action, approval session.Approval) error {
	text := "A person denied this call. It did not run."
	if approval.State == session.ApprovalExpired {
		text = "Nobody approved this call in time. It did not run."
	}
	if approval.Reason != "" {
		text += " Their reason: " + approval.Reason
	}
	r := refuse(subject.CallID, statusDenied, protocol.CodePolicyDenied, text)
	ends, err := w.denialEnds()
	switch {
	case err != nil:
		return err
	case ends:
		return w.endDenied(subject, r.Code, text)
	}
	return w.settle(subject, subject.Fence, outcome{event: session.ActionDeny, result: r})
}

// denialEnds reports that a denial ends the turn, by on_denied of its agent; else the
// model is told.
func (w *turnTx) denialEnds() (bool, error) {
	snap, err := w.snapshot()
	return err == nil && snap.Agent.Approvals.OnDenied == policy.DeniedFails, err
}

// endDenied ends the turn over a call that somebody denied.
func (w *turnTx) endDenied(a session.Action, code, text string) error {
	next, err := a.Step(session.ActionDeny, w.tx.Now)
	if err != nil {
		return err
	}
	next.Code = code
	if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
		return err
	}
	return w.endFailed(reasonApprovalDenied, text)
}

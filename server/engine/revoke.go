package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// takeBack records a revocation and its floor in one transaction, and ends what
// this replica runs under it. INV-13.
func (e *Engine) takeBack(ctx context.Context, c store.Caller, f policy.Floor, record func(tx *store.Tx) error) error {
	if planted.Chosen == planted.Mint && f.Kind != policy.FloorInstance {
		return e.cfg.Store.Update(ctx, c, record)
	}
	raised := raising{floors: e.floors, floor: f}
	err := raised.settle(e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		if err := record(tx); err != nil {
			return err
		}
		return raised.add(tx)
	}))
	if err != nil {
		return err
	}
	if _, err := e.endTaken(ctx); err != nil {
		// It is recorded, and the revoked tick ends what is left.
		e.cfg.Log.Warn("work under a revoked authority ends later", "floor", f.ID, "error", err)
	}
	return nil
}

// raising is a floor on its way into the store. It counts in this replica from
// the moment in which the transaction has proven the caller's right to it and
// before the commit: once the record is there, nothing is minted, and a refused
// caller moves nothing. INV-9, INV-13.
type raising struct {
	floors *floors
	floor  policy.Floor
	undo   func()
}

// add raises it, last in the transaction's checks. The transaction may run again.
func (r *raising) add(tx *store.Tx) error {
	r.floor.At = tx.Now
	if r.undo == nil {
		r.undo = r.floors.raise(r.floor)
	}
	_, err := tx.AddFloor(r.floor)
	return err
}

// settle takes the floor back when the store has refused it for certain. Of a
// commit with an unknown outcome it stays: the record may be there.
func (r *raising) settle(err error) error {
	if err != nil && r.undo != nil && protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
		r.undo()
	}
	return err
}

// RevokeRunner ends a runner's authority and all its work.
func (e *Engine) RevokeRunner(ctx context.Context, c store.Caller, id protocol.RunnerID, reason string) (execution.Runner, error) {
	return e.endRunner(ctx, c, id, execution.RunnerRevoke, reason)
}

// Leave ends the runner for good, at its owner's wish.
func (e *Engine) Leave(ctx context.Context, c store.Caller) error {
	_, err := e.endRunner(ctx, c, c.Runner(), execution.RunnerLeave, "its owner removed it")
	return err
}

// endRunner records the end with its floor and the machine's last mail in one
// transaction, and then ends its work. After a crash in between the reap tick
// does that.
func (e *Engine) endRunner(ctx context.Context, c store.Caller, id protocol.RunnerID, ev execution.RunnerEvent, reason string) (execution.Runner, error) {
	var r execution.Runner
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		r, err = tx.Runner(id)
		return err
	})
	if err != nil || r.State.Terminal() {
		return r, err
	}
	if c.Runner() != id {
		if err := ownerOrAdmin(c, r, "ended"); err != nil {
			return r, err
		}
	}
	floor := policy.Floor{Kind: policy.FloorRunner, ID: r.Thumbprint, Minimum: noFloor}
	raised := raising{floors: e.floors, floor: floor}
	var attempts []execution.Attempt
	err = raised.settle(e.cfg.Store.Update(ctx, store.AsLoop("fence"), func(tx *store.Tx) error {
		now, err := tx.Runner(id)
		if err != nil {
			return err
		}
		if r, err = now.Step(ev, tx.Now); err != nil {
			return err
		}
		if err := tx.SaveRunner(r, now.State); err != nil {
			return err
		}
		if err := raised.add(tx); err != nil {
			return err
		}
		if err := e.mail(tx, id, "", &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Fenced{
			Fenced: &runnerv1.Fenced{Reason: reason}}}); err != nil {
			return err
		}
		attempts, err = tx.AttemptsOfRunner(id)
		return err
	}))
	if err != nil {
		return r, err
	}
	e.cfg.Log.Info("runner fenced", "runner", r.ID, "state", r.State, "attempts", len(attempts))
	if _, err := each(attempts, func(a execution.Attempt) (bool, error) { return true, e.loseMachine(ctx, a) }); err != nil {
		e.cfg.Log.Warn("work of a fenced runner ends later", "runner", r.ID, "error", err)
	}
	return r, nil
}

// loseMachine ends one attempt of a runner that will not come back.
func (e *Engine) loseMachine(ctx context.Context, seen execution.Attempt) error {
	if !seen.State.Held() {
		return e.withdraw(ctx, seen, "the runner is gone")
	}
	const why = "its runner was revoked or removed"
	return e.onSeen(ctx, "fence", seen, func(w *turnTx, a execution.Attempt) error {
		if a.SubjectKind == execution.SubjectTurn {
			return w.interrupted(a, why)
		}
		action, err := w.tx.ActionOfAttempt(a.ID)
		if err != nil || action.State.Terminal() {
			return err
		}
		if settled, err := w.notBegun(a, action, why); err != nil || settled {
			return err
		}
		if action, err = w.doubt(action, why); err != nil {
			return err
		}
		return w.giveUp(action, why)
	})
}

// DisablePrincipal ends a principal's authority and all its work. The last admin
// of a tenant stays: nobody could mend the tenant after it.
func (e *Engine) DisablePrincipal(ctx context.Context, c store.Caller, id protocol.PrincipalID) (policy.Principal, error) {
	var p policy.Principal
	err := e.takeBack(ctx, c, policy.Floor{Kind: policy.FloorPrincipal, ID: id.String(), Minimum: noFloor}, func(tx *store.Tx) (err error) {
		if err := managesTenant(tx, "disable principals"); err != nil {
			return err
		}
		if err := keepsAdmin(tx, id); err != nil {
			return err
		}
		if err := tx.DisablePrincipal(id); err != nil {
			return err
		}
		if p, err = tx.Principal(id); err != nil {
			return err
		}
		return e.asksSessions(tx, p.Tenant, id.String(), tx.Now)
	})
	return p, err
}

// keepsAdmin refuses to take the tenant's last enabled admin. Internal callers
// may: they have the machine in hand.
func keepsAdmin(tx *store.Tx, id protocol.PrincipalID) error {
	p, err := tx.Principal(id)
	if err != nil || !p.Admin || !p.DisabledAt.IsZero() || tx.Caller().Internal() {
		return err
	}
	all, err := tx.Principals()
	for _, other := range all {
		if other.Admin && other.ID != p.ID && other.Tenant == p.Tenant && other.DisabledAt.IsZero() {
			return err
		}
	}
	if err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"%s is the last admin of this tenant, which nobody could manage any more: make another first with `bivouac principal add NAME --admin --token-file FILE`", p.Name)
}

// revokeSessions ends the conversations that stand on an authority: queued turns
// are cancelled, nothing new is taken. Other conversations go on.
func (e *Engine) revokeSessions(ctx context.Context, f foundation) error {
	for cursor := ""; ; {
		var under []protocol.SessionID
		err := e.cfg.Store.View(ctx, f.owner, func(tx *store.Tx) (err error) {
			var page []session.Session
			page, cursor, err = tx.Sessions(0, cursor)
			if err != nil {
				return err
			}
			under, err = f.carries(tx, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, id := range under {
			if err := e.revokeSession(ctx, id, f); err != nil && !lostRace(err) {
				return err
			}
		}
		if cursor == "" {
			return nil
		}
	}
}

func (e *Engine) revokeSession(ctx context.Context, id protocol.SessionID, f foundation) error {
	var ended []*turnTx
	raised := raising{floors: e.floors, floor: policy.Floor{Kind: policy.FloorSession, ID: id.String(), Minimum: noFloor}}
	err := raised.settle(e.cfg.Store.Update(ctx, store.AsLoop("revoke"), func(tx *store.Tx) error {
		ended = nil
		s, err := tx.Session(id)
		if err != nil || s.State.Terminal() {
			return err
		}
		if ended, err = e.endTurns(tx, id, f.why); err != nil {
			return err
		}
		if s, err = tx.Session(id); err != nil {
			return err
		}
		if err := stepSession(tx, &s, session.SessionRevoke); err != nil {
			return err
		}
		if _, err := tx.AppendEvents(id, session.Event{Type: session.SessionRevoked, Data: f.event()}); err != nil {
			return err
		}
		raised.floor.ExpiresAt = tx.Now.Add(floorTTL)
		return raised.add(tx)
	}))
	if err != nil {
		return err
	}
	for _, w := range ended {
		w.committed()
	}
	return nil
}

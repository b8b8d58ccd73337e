package engine

import (
	"context"
	"errors"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// tickReap judges the leases of held attempts by their clocks, as the replica
// that the runner's connection row names, and as no other. Rows of a replica
// that is gone are taken over first, which starts all durations anew. INV-20.
func (e *Engine) tickReap(ctx context.Context) (bool, error) {
	var attempts []execution.Attempt
	rows := map[protocol.RunnerID]execution.Connection{}
	active := map[protocol.RunnerID]bool{}
	err := e.cfg.Store.View(ctx, store.AsLoop("reap"), func(tx *store.Tx) (err error) {
		attempts, err = tx.AttemptsIn(store.All, execution.AttemptClaimed, execution.AttemptRunning, execution.AttemptSuspect)
		if err != nil || len(attempts) == 0 {
			return err
		}
		runners, err := tx.ActiveRunners()
		if err != nil {
			return err
		}
		for _, r := range runners {
			active[r.ID] = true
		}
		connections, err := tx.Connections()
		for _, c := range connections {
			rows[c.Runner] = c
		}
		return err
	})
	if err != nil {
		return false, err
	}
	return each(attempts, func(a execution.Attempt) (bool, error) {
		row, connected := rows[a.Runner]
		switch {
		case !active[a.Runner]:
			return true, e.loseMachine(ctx, a) // revoked, and the server stopped before it ended the work
		case connected && row.Replica != e.cfg.Replica && !e.replicas.gone(row.Replica):
			return false, nil // another replica's to reap, attached or not
		case connected && row.Replica != e.cfg.Replica:
			return true, e.takeRow(ctx, row)
		}
		return e.reap(ctx, a)
	})
}

// takeRow makes this replica the one that reaps a runner's leases.
func (e *Engine) takeRow(ctx context.Context, row execution.Connection) error {
	last, from := row.Epoch, row.Replica
	row.Replica, row.TakenAt = e.cfg.Replica, zeroTime
	err := e.cfg.Store.Update(ctx, store.AsLoop("reap"), func(tx *store.Tx) error {
		if err := e.stillGone(tx, from); err != nil { // it may be newer than our last look
			return err
		}
		row.ExpiresAt = tx.Now // nobody is attached
		_, err := tx.TakeConnection(row, last)
		return err
	})
	if err == nil || protocol.CodeOf(err) == protocol.CodeOutcomeUnknown {
		e.leases.taken(row.Runner, 0)
		e.leases.forgetOf(row.Runner) // whatever this replica knew of them is old
	}
	return err
}

// reap makes the state of one attempt follow its clock. An attempt without a
// clock was claimed before this process started: its clock starts now.
func (e *Engine) reap(ctx context.Context, a execution.Attempt) (bool, error) {
	state, known := e.leases.state(a.ID)
	if !known {
		return e.startClock(ctx, a)
	}
	device := a.SubjectKind == execution.SubjectAction
	switch {
	case state == execution.LeaseAlive && a.State == execution.AttemptSuspect:
		return true, e.onSeen(ctx, "reap", a, func(w *turnTx, a execution.Attempt) error {
			return w.moveAttempt(a, execution.AttemptRenew)
		})
	case state != execution.LeaseAlive && a.State != execution.AttemptSuspect:
		return true, e.onSeen(ctx, "reap", a, func(w *turnTx, a execution.Attempt) error { return w.lapsed(a) })
	case state == execution.LeaseOver && !device:
		return e.reapTurn(ctx, a)
	case state == execution.LeaseOver:
		return e.reapAction(ctx, a)
	}
	return false, nil
}

// startClock starts the clock of an attempt that this replica has none of.
func (e *Engine) startClock(ctx context.Context, a execution.Attempt) (bool, error) {
	return true, e.onSeen(ctx, "reap", a, func(w *turnTx, a execution.Attempt) error {
		auth, err := w.attemptAuthority(a)
		var t *taken
		if err != nil && !errors.As(err, &t) {
			return err // without authority the clock runs too: the work ends by its own tick
		}
		s := w.turn.Session
		w.afterCommit(func() { e.leases.start(a, s, auth) })
		return nil
	})
}

// lapsed: no renewal for the authority ttl. The machine's authority is over; a
// device action on it may have happened or not, so its outcome is in doubt, unless
// it waits for the machine's owner: that one has not begun.
func (w *turnTx) lapsed(a execution.Attempt) error {
	if err := w.moveAttempt(a, execution.AttemptLapse); err != nil {
		return err
	}
	if a.SubjectKind != execution.SubjectAction {
		return nil
	}
	action, err := w.tx.ActionOfAttempt(a.ID)
	if err != nil || action.State != session.Dispatched {
		return err
	}
	if key, err := ownerKeyOf(w.tx, a, 0); err != nil || key.waits() {
		return err
	}
	_, err = w.doubt(action, "its machine has not renewed its lease")
	return err
}

func (w *turnTx) moveAttempt(a execution.Attempt, ev execution.AttemptEvent) error {
	next, err := a.Step(ev, w.tx.Now)
	if err != nil {
		return err
	}
	w.afterCommit(func() { w.e.cfg.Log.Info("attempt moved", "attempt", a.ID, "runner", a.Runner, "state", next.State) })
	return w.tx.SaveAttempt(next, a.State, a.Fence)
}

// reapTurn interrupts the attempt of a turn after retention and guard, once no
// action that the server dispatched is in flight.
func (e *Engine) reapTurn(ctx context.Context, a execution.Attempt) (worked bool, err error) {
	err = e.onSeen(ctx, "reap", a, func(w *turnTx, a execution.Attempt) error {
		worked = false
		if state := w.turn.State; state == session.WaitingAction || state == session.RunningAction || state == session.WaitingReconciliation {
			return nil
		}
		worked = true
		return w.interrupted(a, "it has not renewed its lease for "+a.Retention.String())
	})
	return worked, err
}

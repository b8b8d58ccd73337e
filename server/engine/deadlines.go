package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// tickDeadlines ends what waited or ran too long: one deadline a state. The
// reconcile tick holds its own.
func (e *Engine) tickDeadlines(ctx context.Context) (bool, error) {
	var turns []session.Turn
	var attempts []execution.Attempt
	err := e.cfg.Store.View(ctx, store.AsLoop("deadlines"), func(tx *store.Tx) error {
		past, err := tx.TurnsPastDeadline(tickBatch)
		if err != nil {
			return err
		}
		for _, t := range past {
			if t.State == session.Queued || !tx.Now.Before(t.Deadline) {
				turns = append(turns, t)
			}
		}
		waiting, err := tx.AttemptsIn(store.All, execution.AttemptQueued, execution.AttemptOffered)
		for _, a := range waiting {
			if !tx.Now.Before(a.PlacementDeadline) {
				attempts = append(attempts, a)
			}
		}
		return err
	})
	if err != nil {
		return false, err
	}
	ended, err := each(turns, func(t session.Turn) (bool, error) {
		return true, e.onTurn(ctx, "deadlines", t.ID, (*turnTx).pastDeadline)
	})
	if err != nil {
		return ended, err
	}
	failed, err := each(attempts, func(a execution.Attempt) (bool, error) {
		return true, e.onSeen(ctx, "deadlines", a, func(w *turnTx, a execution.Attempt) error { return w.notPlaced(a) })
	})
	return ended || failed, err
}

func (w *turnTx) pastDeadline() error {
	switch {
	case w.turn.State == session.Queued && !w.tx.Now.Before(w.turn.QueueDeadline):
		return w.endCancelled(reasonQueueDeadline, "The turn waited longer in the queue than its agent allows.")
	case w.turn.State.Active() && !w.tx.Now.Before(w.turn.Deadline):
		return w.endFailed(loop.LimitWall, "The turn ran longer than its agent allows.")
	}
	return nil
}

// notPlaced fails an attempt that nothing took in time. For an action that is
// the known outcome: it never began.
func (w *turnTx) notPlaced(a execution.Attempt) error {
	why := a.DeferReason
	if why == "" {
		why = "no runner took it in time" + w.e.allocated.says(a.Allocation)
	}
	if err := w.endAttempt(a, execution.AttemptFail, reasonNotPlaced, why); err != nil {
		return err
	}
	if a.SubjectKind == execution.SubjectTurn {
		if !w.turn.State.Active() {
			return nil
		}
		return w.endFailed(reasonNotPlaced, "No runner took the turn in time: "+why+".")
	}
	action, err := w.tx.ActionOfAttempt(a.ID)
	if err != nil || action.State.Terminal() {
		return err
	}
	return w.settle(action, action.Fence, outcome{event: session.ActionFail, evidence: "never claimed",
		result: refuse(action.CallID, statusFailed, protocol.CodeUnavailable, "It did not run: "+why+".")})
}

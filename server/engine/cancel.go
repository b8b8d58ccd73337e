package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// CancelTurn ends a turn: one that waits at once, an active one with everything
// that works for it. An action that left already keeps its own life until its
// outcome is known (INV-5). It is idempotent; a turn that has ended is returned
// as it is.
func (e *Engine) CancelTurn(ctx context.Context, c store.Caller, id protocol.TurnID) (session.Turn, error) {
	var t session.Turn
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		t, err = tx.Turn(id)
		return err
	})
	if err != nil || t.State.Terminal() {
		return t, err
	}
	err = e.onTurn(ctx, "cancel", id, func(w *turnTx) error {
		if w.turn.State.Terminal() {
			t = w.turn
			return nil
		}
		if err := w.cancelFor(c, "The turn was cancelled."); err != nil {
			return err
		}
		t = w.turn
		return nil
	})
	return t, err
}

// cancelFor ends the turn because a person said so.
func (w *turnTx) cancelFor(c store.Caller, message string) error {
	if w.turn.State != session.Queued {
		w.turn.CancelRequestedAt = w.tx.Now
		w.event(session.Event{Type: session.CancelRequested, Data: map[string]string{"by": c.Principal().String()}})
	}
	return w.endCancelled(reasonCancelled, message)
}

// cancelActive cancels the turn that occupies a session, for another prompt of the
// same person; nil when none does. What waits in the queue keeps its place. INV-1.
func (e *Engine) cancelActive(tx *store.Tx, id protocol.SessionID) (*turnTx, error) {
	t, err := tx.ActiveTurn(id)
	if notFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	w := e.holdTurn(tx, t)
	if err := w.cancelFor(tx.Caller(), "The turn was cancelled for another prompt."); err != nil {
		return nil, err
	}
	return w, w.close()
}

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
	err := e.Store.View(ctx, c, func(tx *store.Tx) (err error) {
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
		if w.turn.State != session.Queued {
			w.turn.CancelRequestedAt = w.tx.Now
			w.event(session.Event{Type: session.CancelRequested, Data: map[string]string{"by": c.Principal().String()}})
		}
		if err := w.cancelled(reasonCancelled, "The turn was cancelled."); err != nil {
			return err
		}
		t = w.turn
		return nil
	})
	return t, err
}

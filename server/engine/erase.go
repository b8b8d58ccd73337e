package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// EraseSession takes the words out of a session for good and closes it; what the
// record proves stays: ids, states, digests and the event chain. INV-8. Turns
// that have not ended are refused: their words are still at work. Erasing again
// changes nothing.
func (e *Engine) EraseSession(ctx context.Context, c store.Caller, id protocol.SessionID) (session.Session, error) {
	if err := e.mySession(ctx, c, id); err != nil {
		return session.Session{}, err
	}
	var s session.Session
	err := e.cfg.Store.Update(ctx, store.AsLoop("erase"), func(tx *store.Tx) (err error) {
		if err := tx.ErasePayloads(id); err != nil {
			return err
		}
		if s, err = tx.Session(id); err != nil || s.State != session.Open {
			return err
		}
		if err := stepSession(tx, &s, session.SessionClose); err != nil {
			return err
		}
		return closeDrained(tx, &s)
	})
	return s, err
}

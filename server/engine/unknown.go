package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Resolution is a person's word on an unknown outcome.
type Resolution struct {
	Action protocol.ActionID
	// Verdict is "happened", "did_not_happen" or "accepted".
	Verdict string
	Note    string
}

// ListUnknown is the unknown inbox of the caller, with the evidence.
func (e *Engine) ListUnknown(ctx context.Context, c store.Caller, includeResolved bool) (list []session.Action, err error) {
	err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		list, err = tx.Unknowns(includeResolved)
		return err
	})
	return list, err
}

// ResolveUnknown appends a resolution. It changes no state, and frees the
// resource key. INV-5.
func (e *Engine) ResolveUnknown(ctx context.Context, c store.Caller, p Resolution) (session.Action, error) {
	switch p.Verdict {
	case "happened", "did_not_happen", "accepted":
	default:
		return session.Action{}, protocol.Errorf(protocol.CodeInvalidArgument, "resolution %q is not one of happened, did_not_happen, accepted", p.Verdict)
	}
	var a session.Action
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		if a, err = tx.ResolveUnknown(p.Action, p.Verdict, p.Note); err != nil {
			return err
		}
		_, err = tx.AppendEvents(a.Session, session.Event{Type: session.UnknownResolved, Turn: a.Turn, Action: a.ID,
			Data: map[string]string{"resolution": p.Verdict, "by": c.Principal().String()}, Payload: p.Note})
		return err
	})
	return a, err
}

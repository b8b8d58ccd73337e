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
func (e *Engine) ListUnknown(ctx context.Context, c store.Caller, includeResolved bool) ([]session.Action, error) {
	panic("engine: not built")
}

// ResolveUnknown appends a resolution. It changes no state, and frees the
// resource key. INV-5.
func (e *Engine) ResolveUnknown(ctx context.Context, c store.Caller, p Resolution) (session.Action, error) {
	panic("engine: not built")
}

package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Decision of a person about an approval. Digest is what they were shown.
type ApprovalDecision struct {
	Approval protocol.ApprovalID
	Digest   string
	Approve  bool
	Reason   string
}

// DecideApproval records the decision. The same decision again is harmless,
// another one is a conflict. INV-6.
func (e *Engine) DecideApproval(ctx context.Context, c store.Caller, p ApprovalDecision) (session.Approval, error) {
	panic("engine: not built")
}

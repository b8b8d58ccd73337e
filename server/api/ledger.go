package api

import (
	"context"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/store"
)

type ledgers struct{ Config }

// GetLedger says how far the tenant's ledger is sealed and signed.
func (s ledgers) GetLedger(ctx context.Context, _ *apiv1.GetLedgerRequest) (*apiv1.GetLedgerResponse, error) {
	out := &apiv1.GetLedgerResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		h, err := tx.Ledger(callerOf(ctx).Tenant())
		if err != nil && !isNotFound(err) {
			return err
		}
		out.Size, out.Root, out.Head, out.SignedAt, out.Refused = h.Size, h.Root, h.Receipt, at(h.SignedAt), h.Refused
		out.UnsealedEvents, err = tx.UnsealedEvents()
		return err
	})
	return out, err
}

// ExportLedger streams the caller's own record with its proofs. INV-9.
func (s ledgers) ExportLedger(ctx context.Context, r *apiv1.ExportLedgerRequest, stream *connect.ServerStream[apiv1.ExportLedgerResponse]) error {
	var only protocol.SessionID
	if r.GetSessionId() != "" {
		var err error
		if only, err = protocol.ParseID[protocol.SessionKind](r.GetSessionId()); err != nil {
			return err
		}
	}
	return s.Engine.ExportLedger(ctx, callerOf(ctx), only, chunks{stream})
}

// chunks sends what is written.
type chunks struct {
	stream *connect.ServerStream[apiv1.ExportLedgerResponse]
}

// maxChunk bounds one message.
const maxChunk = 256 << 10

func (c chunks) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), maxChunk)]
		if err := c.stream.Send(&apiv1.ExportLedgerResponse{Chunk: part}); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

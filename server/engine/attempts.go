package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/store"
)

// Claim gives an offered attempt to the first supervisor that asks. INV-14.
func (e *Engine) Claim(ctx context.Context, c store.Caller, req *runnerv1.ClaimRequest) (*runnerv1.ClaimResponse, error) {
	panic("engine: not built")
}

// Decline sends an offer elsewhere.
func (e *Engine) Decline(ctx context.Context, c store.Caller, req *runnerv1.DeclineRequest) error {
	panic("engine: not built")
}

// Renew restarts lease clocks; it costs no write. A lost lease is absent.
func (e *Engine) Renew(ctx context.Context, c store.Caller, req *runnerv1.RenewRequest) (*runnerv1.RenewResponse, error) {
	panic("engine: not built")
}

// Report accepts journal records once, in order, under the fence. Records under
// a stale fence are evidence only. INV-3.
func (e *Engine) Report(ctx context.Context, c store.Caller, req *runnerv1.ReportRequest) (*runnerv1.ReportResponse, error) {
	panic("engine: not built")
}

// Live passes text of a running turn to whoever watches.
func (e *Engine) Live(ctx context.Context, c store.Caller, req *runnerv1.LiveRequest) error {
	panic("engine: not built")
}

// MayPutBlob checks, before any byte is taken, that the attempt may store blobs.
func (e *Engine) MayPutBlob(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence) error {
	panic("engine: not built")
}

// BlobStored makes a stored blob an artifact of the attempt's turn.
func (e *Engine) BlobStored(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence, digest string, size int64) error {
	panic("engine: not built")
}

// MayGetBlob checks that the attempt's work names the blob.
func (e *Engine) MayGetBlob(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence, digest string) error {
	panic("engine: not built")
}

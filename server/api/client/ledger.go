package client

import (
	"context"
	"io"

	"bivouac/server/api/apiv1"
)

// ExportLedger writes the caller's sealed record, of one session or of all, as a
// file that is verified without a server. What was written before an error
// proves nothing: its last line is missing.
func (c *Client) ExportLedger(ctx context.Context, session string, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Ledger.ExportLedger(ctx, &apiv1.ExportLedgerRequest{SessionId: session})
	if err != nil {
		return err
	}
	defer stream.Close() // cancelled with ctx
	for stream.Receive() {
		if _, err := w.Write(stream.Msg().GetChunk()); err != nil {
			return err
		}
	}
	return stream.Err()
}

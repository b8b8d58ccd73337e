package mcp

import (
	"context"
	"encoding/json"
	"errors"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/server/broker/gateway"
)

// Call is one call of a tool.
type Call struct {
	// Tool by its exact name, and the digest of the schema it was accepted with.
	Tool, Digest string
	// Arguments as canonical JSON, already compared with their digest.
	Arguments []byte
	// Reads says that nothing changes by it.
	Reads bool
	// MaxBytes of the answer's text; zero or too large means MaxBytes.
	MaxBytes int
}

// Check holds a call against what the server offers now. Its error says that
// nothing was called.
func (s *Session) Check(c Call) error {
	if err := s.e.match(s.offers, c.Tool, c.Digest); err != nil {
		return &gateway.NotSent{Err: err}
	}
	return nil
}

// Call sends the one call. An error is a gateway.NotSent, or the outcome is not
// known.
func (s *Session) Call(ctx context.Context, c Call) (*gateway.Answer, error) {
	if err := s.Check(c); err != nil {
		return nil, err
	}
	var res *sdk.CallToolResult
	err := contained(func() (err error) {
		res, err = s.client.CallTool(ctx, &sdk.CallToolParams{Name: c.Tool, Arguments: json.RawMessage(c.Arguments)})
		return err
	})
	limit := MaxBytes
	if c.MaxBytes > 0 {
		limit = min(c.MaxBytes, MaxBytes)
	}
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	if err == nil {
		return s.wire.rendered(res, limit), nil
	}
	return s.outcome(ctx, c, err, limit)
}

// outcome of a call without a result: it never left, it was answered with a no, or
// nobody knows. Whether a status is the server's own word, or that of a proxy which
// does not know what became of the call, is judged where all answers are, in the
// engine. The wire's lock is held.
func (s *Session) outcome(ctx context.Context, c Call, err error, limit int) (*gateway.Answer, error) {
	w := s.wire
	var status *statusError
	var lie *violation
	switch {
	case !w.arrived:
		return nil, s.e.before(ctx, errors.Join(w.failure, err))
	case errors.As(w.failure, &status):
		return w.failed(status.status, status.Error(), limit), nil
	case w.fault != nil:
		return w.failed(200, faultText(w.fault), limit), nil
	case w.failure == nil && ctx.Err() == nil:
		lie = &violation{"its result is none of MCP's"}
	default:
		errors.As(w.failure, &lie)
	}
	switch {
	case lie == nil:
		return nil, s.e.unknown(ctx, errors.Join(w.failure, err))
	case c.Reads && ctx.Err() == nil:
		// Nothing can have changed, so nothing is left unknown.
		return w.failed(200, "The MCP server did not answer as it should: "+lie.text, limit), nil
	}
	return nil, s.e.unknown(ctx, lie)
}

package intercept

import (
	"context"
	"net/http"

	"connectrpc.com/connect"
)

// Call is what a guard is asked about.
type Call struct {
	Procedure string
	Header    http.Header
}

// Guard admits a call or refuses it before any handler sees it; the context that
// it returns is the handler's.
type Guard func(ctx context.Context, c Call) (context.Context, error)

// WrapUnary implements connect.Interceptor.
func (g Guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, err := g(ctx, Call{req.Spec().Procedure, req.Header()})
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient guards nothing: a handler has no clients.
func (g Guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g Guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := g(ctx, Call{conn.Spec().Procedure, conn.RequestHeader()})
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

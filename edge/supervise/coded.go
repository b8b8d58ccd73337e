package supervise

import (
	"context"
	"errors"
	"log/slog"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
)

// coded turns errors into what goes over a socket of this machine. An error
// without a code is an internal fault: it is logged here, and the other side
// learns no more than that.
func coded(log *slog.Logger) connect.Interceptor { return codedInterceptor{log} }

type codedInterceptor struct{ log *slog.Logger }

func (c codedInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		return res, c.wire(ctx, req.Spec().Procedure, err)
	}
}

func (c codedInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return c.wire(ctx, conn.Spec().Procedure, next(ctx, conn))
	}
}

func (c codedInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (c codedInterceptor) wire(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	if protocol.CodeOf(err) == protocol.CodeInternal {
		var wire *connect.Error
		if errors.As(err, &wire) {
			return err // the other side went away while it was answered
		}
		c.log.ErrorContext(ctx, "a call failed inside", "procedure", procedure, "error", err)
		err = protocol.Errorf(protocol.CodeInternal, "the supervisor failed; its log says why")
	}
	return protocol.ToConnect(err)
}

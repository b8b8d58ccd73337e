package edge

import (
	"context"
	"errors"
	"sync/atomic"

	"connectrpc.com/connect"
)

// maxUnanswered calls in a row say that a connection which lives carries nothing.
const maxUnanswered = 2

// progress watches that calls are answered. A connection can be up, with its
// keep-alive answered and heartbeats coming, and still not do its work: then it is
// torn down and made anew, rather than waited on for ever.
type progress struct {
	unanswered atomic.Int32
	// alive reports a connection: without one nothing can be answered.
	alive func() bool
	// stalled is told once for each such connection.
	stalled func()
}

// intercept judges the end of every call.
func (p *progress) intercept() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			switch {
			case err == nil || connect.IsWireError(err):
				p.unanswered.Store(0)
			case errors.Is(ctx.Err(), context.DeadlineExceeded) && p.alive() && p.unanswered.Add(1) >= maxUnanswered:
				p.unanswered.Store(0)
				p.stalled()
			}
			return res, err
		}
	})
}

package intercept

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
)

// MaxMessageBytes bounds one message of a call or a stream.
const MaxMessageBytes = 4 << 20

// UnaryTimeout bounds a call that is no stream, where the configuration says
// nothing else.
const UnaryTimeout = 30 * time.Second

// ChunkBytes is how much of a blob travels in one message.
const ChunkBytes = 256 << 10

// compressFrom is the size from which a message is worth compressing: the set-up
// of a compressor costs more than a small message's bytes.
const compressFrom = 4 << 10

// Options are the handler options of every service: message bounds, then the
// outer interceptor of this package, then what the listener adds.
func Options(unaryTimeout time.Duration, inner ...connect.Interceptor) []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithReadMaxBytes(MaxMessageBytes),
		connect.WithSendMaxBytes(MaxMessageBytes),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithInterceptors(append([]connect.Interceptor{outer{unaryTimeout}}, inner...)...),
	}
}

// outer bounds, recovers and translates.
type outer struct{ unaryTimeout time.Duration }

func (o outer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		ctx, cancel := context.WithTimeout(ctx, o.unaryTimeout)
		defer cancel()
		err = guard(func() (err error) { res, err = next(ctx, req); return err })
		if err != nil {
			return nil, translate(ctx, req.Spec().Procedure, err)
		}
		finish(ctx)
		return res, nil
	}
}

func (o outer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (o outer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := guard(func() error { return next(ctx, conn) })
		if err != nil {
			return translate(ctx, conn.Spec().Procedure, err)
		}
		finish(ctx)
		return nil
	}
}

func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			err = panicked(p)
		}
	}()
	return fn()
}

// End notes how a request ended that no interceptor sees.
func End(ctx context.Context, err error) {
	if c := callOf(ctx); c != nil && err != nil {
		var fault error
		if protocol.CodeOf(err) == protocol.CodeInternal {
			fault = err
		}
		c.end(protocol.CodeOf(err), fault)
	}
}

func finish(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.end("ok", nil)
	}
}

// translate turns what a handler returned into what the client may see.
func translate(ctx context.Context, procedure string, err error) error {
	coded := code(err)
	if coded == nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		coded = gone() // the transport's own word for it, such as a QUIC error
	}
	var fault error
	if coded == nil {
		fault = err
		id := RequestID(ctx)
		if id == "" {
			id = newRequestID()
			fault = fmt.Errorf("incident %s: %w", id, err)
		}
		coded = protocol.Errorf(protocol.CodeInternal,
			"%s failed inside the server; the server's log says why under incident %s", procedure, id)
	}
	if c := callOf(ctx); c != nil {
		c.end(protocol.CodeOf(coded), fault)
	}
	return protocol.ToConnect(coded)
}

// code finds the code of err, or nil when it is an internal fault.
func code(err error) error {
	var pe *protocol.Error
	if errors.As(err, &pe) {
		if pe.Code == protocol.CodeInternal {
			return nil
		}
		return err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeDeadlineExceeded, "the call did not finish in its time; ask again, the same key repeats nothing")
	case errors.Is(err, context.Canceled):
		return gone()
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		if wire := protocol.FromConnect(ce); protocol.CodeOf(wire) != protocol.CodeInternal {
			return wire
		}
	}
	return nil
}

func gone() error { return protocol.Errorf(protocol.CodeCancelled, "the caller went away") }

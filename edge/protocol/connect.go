package protocol

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"
)

// Headers that carry what a Connect status cannot: our exact code, its detail, and
// when to come back. They are error metadata, so they pass through every transport.
const (
	headerCode       = "Bivouac-Code"
	headerDetail     = "Bivouac-Detail"
	headerRetryAfter = "Retry-After"
)

// ToConnect turns err into what goes over the wire. An error without a code
// must not come here: the caller logs it and sends an incident id instead.
func ToConnect(err error) *connect.Error {
	code := CodeOf(err)
	ce := connect.NewError(connect.Code(Codes[code].Connect), errors.New(err.Error()))
	ce.Meta().Set(headerCode, string(code))
	if d := DetailOf(err); d != "" {
		ce.Meta().Set(headerDetail, string(d))
	}
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		secs := int64((e.RetryAfter + time.Second - 1) / time.Second)
		ce.Meta().Set(headerRetryAfter, strconv.FormatInt(secs, 10))
	}
	return ce
}

// FromConnect turns what a Connect client returned into an Error. A transport
// failure without our header keeps the nearest code.
func FromConnect(err error) error {
	if err == nil {
		return nil
	}
	// An error of this side, such as a peer that is not the right one, comes
	// wrapped as a transport failure and keeps its own code.
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		if CodeOf(err) != CodeInternal {
			return err
		}
		return &Error{Code: CodeUnavailable, Message: err.Error(), Err: err}
	}
	e := &Error{Code: Code(ce.Meta().Get(headerCode)), Detail: Detail(ce.Meta().Get(headerDetail)), Message: ce.Message(), Err: err}
	if _, known := Codes[e.Code]; !known {
		e.Code, e.Detail = nearest(ce.Code()), "" // a detail is of its code
		if !connect.IsWireError(ce) && (e.Code == CodeInternal || e.Code == CodeCancelled && brokeOff(err)) {
			e.Code = CodeUnavailable // the connection broke in the middle: the peer said nothing of the kind
		}
	}
	if s := ce.Meta().Get(headerRetryAfter); s != "" {
		if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
			e.RetryAfter = time.Duration(n) * time.Second
		}
	}
	return e
}

// brokeOff reports a connection that the other end reset, as one does that is
// killed. Connect calls that cancelled; nobody here has cancelled anything.
func brokeOff(err error) bool {
	return (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) && !errors.Is(err, context.Canceled)
}

func nearest(c connect.Code) Code {
	switch c {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return CodeInvalidArgument
	case connect.CodeUnauthenticated:
		return CodeUnauthenticated
	case connect.CodePermissionDenied:
		return CodePermissionDenied
	case connect.CodeNotFound:
		return CodeNotFound
	case connect.CodeAlreadyExists:
		return CodeAlreadyExists
	case connect.CodeAborted:
		return CodeConflict
	case connect.CodeFailedPrecondition:
		return CodeFailedPrecondition
	case connect.CodeResourceExhausted:
		return CodeRateLimited
	case connect.CodeUnimplemented:
		return CodeIncompatible
	case connect.CodeUnavailable:
		return CodeUnavailable
	case connect.CodeDeadlineExceeded:
		return CodeDeadlineExceeded
	case connect.CodeCanceled:
		return CodeCancelled
	case connect.CodeDataLoss:
		return CodeDataLoss
	}
	return CodeInternal
}

package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/secret"
)

// Answer of an upstream, redacted and bounded.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
	// Truncated says that the upstream sent more than Body; Bytes is how many, as
	// far as they were counted.
	Truncated bool
	Bytes     int64
	Digest    string // of Body
	// Failed says that the answer itself is a no, whatever its status.
	Failed bool
	// Unread says why Body is not all that the upstream has; empty: nothing says that
	// there is more.
	Unread string
	// Exit status of a command on a host; nil: it was none, or a signal ended it.
	Exit *int32

	next   string        // what its Link header says follows
	hidden bool          // its Link header says so, with the credential in the address
	retry  time.Duration // what its Retry-After header asks for
}

// NotSent wraps an error after which it is certain that no byte of the request
// left.
type NotSent struct{ Err error }

func (e *NotSent) Error() string { return e.Err.Error() }
func (e *NotSent) Unwrap() error { return e.Err }

// Pass is what a call needs beside its template.
type Pass struct {
	Credential secret.Value
	// Before are other values that answers are redacted of.
	Before []secret.Value
	// Carrier of a credential that has no binding.
	Carrier Carrier
	// LeavesFunc is asked about every request but the first before it leaves: the same
	// again, or a page. Nil allows them.
	LeavesFunc func(*consul.Request) error
	// RenewFunc gives another credential in the place of one that the upstream refused
	// (401), for a call that may be sent again, and what else answers are redacted of
	// then; nil: there is none.
	RenewFunc func(context.Context) (v secret.Value, before []secret.Value, err error)
}

// sending is one call with its tries and its pages.
type sending struct {
	r       *Request
	pass    Pass
	flow    context.Context // without the tool's own time
	renewed bool
	waited  time.Duration
}

// Send sends the request, and again only what its class lets be sent again. Errors
// are NotSent, or mean that the outcome is not known. The answer is redacted of the
// credential, and of the values that it had before.
func (r *Request) Send(flow context.Context, p Pass) (*Answer, error) {
	ctx, cancel := context.WithTimeoutCause(flow, r.timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the tool's time of %s is over", r.timeout))
	defer cancel()
	s := &sending{r: r, pass: p, flow: flow}
	first, err := s.answer(ctx, r.http)
	if err != nil {
		return nil, err
	}
	return s.whole(ctx, first)
}

// once sends a request, and not again.
func (s *sending) once(ctx context.Context, request *http.Request) (*Answer, error) {
	r := s.r
	req, err := fresh(ctx, request)
	if err == nil {
		err = r.inject(req.Header, s.pass.Credential)
	}
	if err != nil {
		return nil, &NotSent{err}
	}
	var connected atomic.Bool
	if err := s.put(ctx, req); err != nil {
		return nil, &NotSent{err}
	}
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}))
	res, err := s.client().Do(req)
	if err != nil {
		if refused := s.certificateRefused(err); refused != nil {
			return nil, refused
		}
		return nil, r.failed(ctx, err, connected.Load())
	}
	defer res.Body.Close()
	redactor := s.redactor()
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		// What cannot be read cannot be redacted.
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s answered with status %d in encoding %q, which was not asked for and is not read",
			r.d.cfg.Name, res.StatusCode, redactor.Text(e))
	}
	a := &Answer{Status: res.StatusCode, ContentType: clean(redactor.Decoded(res.Header.Get("Content-Type"))), retry: retryAfter(res.Header, time.Now())}
	if a.next = nextLink(res.Header); redactor.Decoded(a.next) != a.next {
		a.next, a.hidden = "", true // it would put the credential where it does not belong
	}
	if err := a.read(res.Body, redactor, r.maxBytes); err != nil {
		return nil, r.failed(ctx, err, true)
	}
	a.Digest = canonical.Digest(a.Body)
	return a, nil
}

// redactor of everything that an answer must not hold.
func (s *sending) redactor() *secret.Redactor {
	return secret.NewRedactor(append([]secret.Value{s.pass.Credential}, s.pass.Before...)...)
}

// fresh is a request that was not sent yet, with its whole body.
func fresh(ctx context.Context, of *http.Request) (*http.Request, error) {
	req := of.Clone(ctx)
	if of.GetBody == nil {
		return req, nil
	}
	var err error
	req.Body, err = of.GetBody()
	return req, err
}

// failed tells "never left" from "may have happened".
func (r *Request) failed(ctx context.Context, err error, connected bool) error {
	var refused *egress.Refused
	switch {
	case errors.As(err, &refused):
		return &NotSent{refused.Err}
	case !connected && ctx.Err() != nil:
		return &NotSent{context.Cause(ctx)}
	case !connected:
		return &NotSent{protocol.Errorf(protocol.CodeUnavailable, "destination %s cannot be reached: no connection was made", r.d.cfg.Name)}
	case ctx.Err() != nil:
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s had not answered when the call ended: %w", r.d.cfg.Name, context.Cause(ctx))
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s broke off before its answer was whole", r.d.cfg.Name)
}

// read takes at most limit redacted bytes. What was cut off leaves its end out where
// that may begin a value, in whatever escapes: a cut never leaves half of one. INV-17.
func (a *Answer) read(in io.Reader, r *secret.Redactor, limit int) error {
	raw, err := io.ReadAll(io.LimitReader(in, int64(limit+r.Longest()+1)))
	if err != nil {
		return err
	}
	rest, err := io.Copy(io.Discard, io.LimitReader(in, maxCount))
	if err != nil && len(raw) <= limit {
		return err
	}
	a.Bytes = int64(len(raw)) + rest
	text := r.Text(string(raw))
	if rest == 0 && len(raw) <= limit+r.Longest() {
		text = r.Decoded(text)
	} else {
		text = r.Cut(text)
	}
	a.Truncated = a.Bytes > int64(limit) || len(text) > limit
	a.Body = []byte(text[:min(len(text), limit)])
	return nil
}

func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s[:min(len(s), 200)])
}

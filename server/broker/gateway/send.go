package gateway

import (
	"context"
	"errors"
	"io"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

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
}

// NotSent wraps an error after which it is certain that no byte of the request
// left.
type NotSent struct{ Err error }

func (e *NotSent) Error() string { return e.Err.Error() }
func (e *NotSent) Unwrap() error { return e.Err }

// Send sends the request once. Errors are NotSent, or mean that the outcome is
// not known. The answer is redacted of the credential, and of the values that it
// had before.
func (r *Request) Send(ctx context.Context, credential secret.Value, before ...secret.Value) (*Answer, error) {
	if err := r.inject(credential); err != nil {
		return nil, &NotSent{err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the tool's time of %s is over", r.timeout))
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	res, err := r.d.cfg.Client.Do(r.http.WithContext(ctx))
	if err != nil {
		return nil, r.failed(ctx, err, connected.Load())
	}
	defer res.Body.Close()
	redactor := secret.NewRedactor(append([]secret.Value{credential}, before...)...)
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		// What cannot be read cannot be redacted.
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s answered with status %d in encoding %q, which was not asked for and is not read",
			r.d.cfg.Name, res.StatusCode, redactor.Text(e))
	}
	a := &Answer{Status: res.StatusCode, ContentType: clean(redactor.Text(res.Header.Get("Content-Type")))}
	if err := a.read(res.Body, redactor, r.maxBytes); err != nil {
		return nil, r.failed(ctx, err, true)
	}
	a.Digest = canonical.Digest(a.Body)
	return a, nil
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

// read takes at most limit redacted bytes. The redactor holds the end back while
// it may begin a value, so a cut never leaves half of one.
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
	s := r.Stream()
	text := s.Next(string(raw))
	if rest == 0 && len(raw) <= limit+r.Longest() {
		text += s.Rest()
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

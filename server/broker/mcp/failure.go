package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
)

// statusError is an answer whose HTTP status says no.
type statusError struct {
	status int
	retry  time.Duration
	text   string // redacted and bounded; empty without one
}

func (s *statusError) Error() string {
	text := fmt.Sprintf("HTTP %d %s", s.status, http.StatusText(s.status))
	if s.status >= 300 && s.status < 400 {
		text += ": redirects are not followed"
	}
	if s.text != "" {
		text += ": " + s.text
	}
	return text
}

// brokenError is a request that may have arrived, and whose answer did not.
type brokenError struct{ err error }

func (b *brokenError) Error() string { return b.err.Error() }
func (b *brokenError) Unwrap() error { return b.err }

// before names what went wrong before a tool was called: nothing has happened.
func (e *Endpoint) before(ctx context.Context, err error) error {
	var refused *egress.Refused
	var status *statusError
	var lie *violation
	var coded *protocol.Error
	name := "the MCP server of destination " + e.cfg.Name
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &refused):
		err = refused.Err
	case errors.As(err, &status):
		err = status.before(name)
	case errors.As(err, &lie):
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "%s does not speak MCP as it should, and was not called: %s", name, lie.text)
	case errors.As(err, &coded):
		err = coded
	default:
		err = protocol.Errorf(protocol.CodeUnavailable, "%s cannot be reached, or broke off before it was called", name)
	}
	return &gateway.NotSent{Err: err}
}

func (s *statusError) before(name string) error {
	code, mend := protocol.CodeFailedPrecondition, "; see its url in broker.hcl"
	switch {
	case s.status == http.StatusUnauthorized || s.status == http.StatusForbidden:
		code, mend = protocol.CodePermissionDenied, "; bivouac credential set stores another credential"
	case s.status == http.StatusTooManyRequests:
		code, mend = protocol.CodeRateLimited, ""
	case s.status >= 500:
		code, mend = protocol.CodeUnavailable, ""
	}
	err := protocol.Errorf(code, "%s was not called: it answered with %s%s", name, s, mend)
	err.RetryAfter = s.retry
	return err
}

// unknown is the outcome of a call that left and was not answered. INV-5.
func (e *Endpoint) unknown(ctx context.Context, err error) error {
	name := "the MCP server of destination " + e.cfg.Name
	var lie *violation
	switch {
	case ctx.Err() != nil:
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "%s had not answered when the call ended: %w", name, context.Cause(ctx))
	case errors.As(err, &lie):
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "%s was called and did not answer as it should: %s", name, lie.text)
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown, "%s broke off before its answer was whole", name)
}

// retryAfter reads a header in seconds, up to an hour.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(n)*time.Second, time.Hour)
}

// maxWords of a server's own text in an error, and of its description of a tool.
const (
	maxWords       = 500
	maxDescription = 4000
)

// words are a server's own text for a person or an error: on one line, without what
// a terminal or a reader would act on, redacted after that, and cut last, so that
// neither step puts a credential together again. INV-17.
func (w *wire) words(s string) string { return w.cut(s, maxWords) }

// shows reports a text with the credential in it, also in strings of JSON.
func (w *wire) shows(s string) bool { return w.redactor.Found(s) || w.redactor.Decoded(s) != s }

func (w *wire) cut(s string, most int) string {
	s = w.redactor.Decoded(w.redactor.Text(strings.TrimSpace(tidy(s))))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// tidy leaves out what legible would escape: an escape in the middle of a credential
// would keep it from being found. Bytes that are no UTF-8 arrive as U+FFFD.
func tidy(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !legible.Seen(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, s)
}

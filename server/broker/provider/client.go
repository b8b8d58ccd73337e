package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/secret"
)

// Bounds of one answer.
const (
	maxAnswer = 16 << 20 // bytes on the wire
	maxLine   = 1 << 20  // of one server-sent event
	maxError  = 32 << 10 // of an error's body
)

// Waits when a route says nothing: for the beginning of an answer, and between
// two pieces of it.
const (
	DefaultFirst = 10 * time.Minute
	DefaultIdle  = 2 * time.Minute
)

// Config of a Client.
type Config struct {
	// Route is the route's name, for errors.
	Route string
	// Format of the wire; empty means OpenAIChat.
	Format string
	// Base URL above the format's path, such as https://api.openai.com/v1.
	Base *url.URL
	// Client reaches Base and nothing else; see package egress.
	Client *http.Client
	// Credential is the name of the key, for errors; empty: no key is sent.
	Credential string
	// Binding of the key; zero means the format's own.
	Binding secret.Binding
	// LimitField of OpenAIChat names the field for the limit of output tokens:
	// "max_tokens" (default) or "max_completion_tokens".
	LimitField string
	// First bounds the wait for an answer, Idle the wait between two pieces of
	// one. Zero: the defaults.
	First, Idle time.Duration
}

// Client is the Port in one wire format.
type Client struct {
	cfg    Config
	format format
	url    *url.URL
}

// New sends nothing.
func New(cfg Config) (*Client, error) {
	if cfg.Format == "" {
		cfg.Format = OpenAIChat
	}
	f, ok := formats[cfg.Format]
	if !ok {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "format %q is not known: use one of %s", cfg.Format, strings.Join(Formats, ", "))
	}
	if cfg.Binding == (secret.Binding{}) {
		cfg.Binding = f.binding
	}
	if err := cfg.Binding.Check(); err != nil {
		return nil, err
	}
	if cfg.First == 0 {
		cfg.First = DefaultFirst
	}
	if cfg.Idle == 0 {
		cfg.Idle = DefaultIdle
	}
	return &Client{cfg: cfg, format: f, url: cfg.Base.JoinPath(f.path)}, nil
}

// Complete makes one try and streams its text. Errors before it are plain; a try
// that failed is a *Failure.
func (c *Client) Complete(ctx context.Context, call Call, onDelta func(string) error) (*Answer, error) {
	req, err := c.request(call)
	if err != nil {
		return nil, err
	}
	w := newWatch(ctx, c.cfg.First)
	defer w.stop()
	redactor := secret.NewRedactor(append([]secret.Value{call.Key}, call.Retired...)...)
	res, sent, err := c.send(w.ctx, req)
	if err != nil {
		return nil, c.notAnswered(w.ctx, err, sent, redactor)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		fault := Status
		err := c.statusError(res, redactor)
		if f := (*failed)(nil); errors.As(err, &f) {
			fault, err = f.fault, f.err
		}
		return nil, &Failure{Stage: Refused, Fault: fault, Status: res.StatusCode, Err: err}
	}
	b := &builder{route: c.cfg.Route, speaks: c.format.speaks, redactor: redactor, stream: redactor.Stream(), onDelta: onDelta}
	err = c.read(res, b, &watched{in: &bounded{in: res.Body, left: maxAnswer}, watch: w, idle: c.cfg.Idle})
	var answer *Answer
	if err == nil {
		answer, err = b.answer()
	}
	if err != nil {
		return nil, c.notWhole(w.ctx, err, b)
	}
	return answer, nil
}

// request with everything in its place. What would leave without its key, or with
// a placeholder, is refused.
func (c *Client) request(call Call) (*http.Request, error) {
	body, err := c.Encode(call.Model, call.Request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = c.header()
	switch {
	case c.cfg.Credential == "" && call.Key.IsZero():
		return req, nil
	case c.cfg.Credential == "":
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "model route %s names no credential, so none is sent: nothing was sent", c.cfg.Route)
	}
	return req, c.cfg.Binding.Put(req.Header, call.Key, "model route "+c.cfg.Route)
}

// send reports whether the request left.
func (c *Client) send(ctx context.Context, req *http.Request) (res *http.Response, sent bool, err error) {
	var got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	res, err = c.cfg.Client.Do(req.WithContext(ctx))
	return res, got.Load(), err
}

func (c *Client) read(res *http.Response, b *builder, in io.Reader) error {
	r := c.format.reader(b)
	switch kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind {
	case "text/event-stream":
		return readEvents(in, r, b)
	case "application/json":
		body, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		return r.whole(body)
	default:
		return b.unreadable("it answered with content type %q", clip(b.redactor.Text(kind)))
	}
}

// notAnswered says that no status came. Model calls have no effect, so they may
// be repeated; what may have been read is owed.
func (c *Client) notAnswered(ctx context.Context, err error, sent bool, r *secret.Redactor) error {
	f := &Failure{Stage: Unsent, Fault: Unreachable}
	if sent {
		f.Stage, f.Fault = Sent, BrokeOff
	}
	var refused *egress.Refused
	if cause := context.Cause(ctx); cause != nil {
		f.Fault, f.Err = stopped(cause, c.cfg.Route)
		return f
	}
	if errors.As(err, &refused) && protocol.CodeOf(err) == protocol.CodePolicyDenied {
		f.Fault, f.Err = Forbidden, refused.Err
		return f
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL
	}
	f.Err = protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s cannot be reached: %s", c.cfg.Route, r.Text(err.Error()))
	return f
}

// notWhole says that an answer began and did not end well.
func (c *Client) notWhole(ctx context.Context, err error, b *builder) error {
	f := &Failure{Stage: Begun, Usage: b.usage, Bytes: b.bytes}
	unavailable := func(fault Fault, how string) {
		f.Fault, f.Err = fault, protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s: %s", c.cfg.Route, how)
	}
	var named *failed
	var left *gone
	switch cause := context.Cause(ctx); {
	case errors.As(err, &left):
		f.Fault, f.Err = Stopped, left.err
	case cause != nil:
		f.Fault, f.Err = stopped(cause, c.cfg.Route)
	case errors.As(err, &named):
		f.Fault, f.Err = named.fault, named.err
	case errors.Is(err, errEndedEarly):
		unavailable(EndedEarly, "stream ended early: its answer has no end marker")
	case errors.Is(err, errTooLong):
		f.Fault, f.Err = Unreadable, protocol.Errorf(protocol.CodeDataLoss, "the provider of model route %s sends an answer, or an event, that is longer than is read: %d and %d bytes", c.cfg.Route, maxAnswer, maxLine)
	default:
		unavailable(BrokeOff, "stream broke off in the middle of its answer")
	}
	return f
}

// stopped tells a provider that stood still from a caller that stopped.
func stopped(cause error, route string) (Fault, error) {
	var still *stoodStill
	if errors.As(cause, &still) {
		return Idle, protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s: %s", route, still)
	}
	return Stopped, cause
}

// failed is an error with its fault, on the way out of a reader.
type failed struct {
	fault Fault
	err   error
}

func (f *failed) Error() string { return f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

// stoodStill is the cause with which a watch ends a call.
type stoodStill struct{ after time.Duration }

func (s *stoodStill) Error() string { return fmt.Sprintf("nothing came for %s", s.after) }

package provider

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

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

// Config of ChatCompletions.
type Config struct {
	// Route is the route's name, for errors.
	Route string
	// Base URL up to and without /chat/completions, such as https://api.openai.com/v1.
	Base *url.URL
	// Client reaches Base and nothing else; see package egress.
	Client *http.Client
	// Credential is the name of the key, for errors.
	Credential string
	// LimitField names the field for the limit of output tokens: "max_tokens"
	// (default) or "max_completion_tokens".
	LimitField string
}

// ChatCompletions is the Port in OpenAI's wire format.
type ChatCompletions struct {
	cfg Config
	url string
}

// NewChatCompletions sends nothing.
func NewChatCompletions(cfg Config) *ChatCompletions {
	return &ChatCompletions{cfg: cfg, url: strings.TrimSuffix(cfg.Base.String(), "/") + "/chat/completions"}
}

// Complete makes one call and streams its text.
func (c *ChatCompletions) Complete(ctx context.Context, call Call, onDelta func(string) error) (*Answer, error) {
	body, err := c.Encode(call.Model, call.Request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream, application/json")
	if !call.Key.IsZero() {
		req.Header.Set("Authorization", "Bearer "+call.Key.Reveal())
	}
	res, err := c.cfg.Client.Do(req)
	if err != nil {
		return nil, c.transportError(ctx, err, call.Key)
	}
	defer res.Body.Close()
	redactor := secret.NewRedactor(call.Key)
	if res.StatusCode != http.StatusOK {
		return nil, c.statusError(res, redactor)
	}
	a := &assembler{route: c.cfg.Route, redactor: redactor, stream: redactor.Stream(), onDelta: onDelta}
	in := &bounded{in: res.Body, left: maxAnswer}
	switch kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind {
	case "text/event-stream":
		err = a.readStream(in)
	case "application/json":
		err = a.readWhole(in)
	default:
		return nil, c.garbage("it answered with content type %q", clip(redactor.Text(kind)))
	}
	if err != nil {
		return nil, c.readError(ctx, err)
	}
	return a.answer()
}

func (c *ChatCompletions) garbage(format string, args ...any) error {
	return garbage(c.cfg.Route, format, args...)
}

// garbage is an answer that no repetition makes better.
func garbage(route, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeDataLoss, "the provider of model route %s does not speak chat completions: "+format+"; check base_url in broker.hcl",
		append([]any{route}, args...)...)
}

// transportError says that no answer began. Model calls have no effect, so they
// may be repeated.
func (c *ChatCompletions) transportError(ctx context.Context, err error, key secret.Value) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var refused *egress.Refused
	if errors.As(err, &refused) && protocol.CodeOf(err) == protocol.CodePolicyDenied {
		return refused.Err
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s cannot be reached: %s",
		c.cfg.Route, secret.NewRedactor(key).Text(err.Error()))
}

// readError says that an answer began and did not end well. Half a stream may be
// asked for again; garbage may not.
func (c *ChatCompletions) readError(ctx context.Context, err error) error {
	var coded *protocol.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &coded):
		return coded
	case errors.Is(err, errTooLong):
		return c.garbage("its answer is longer than %d bytes", maxAnswer)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s broke off in the middle of its answer", c.cfg.Route)
}

var errTooLong = errors.New("too long")

// bounded fails beyond its limit instead of pretending an end.
type bounded struct {
	in   io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.in.Read(p)
	b.left -= int64(n)
	return n, err
}

func clip(s string) string {
	if r := []rune(s); len(r) > 400 {
		return string(r[:400]) + "…"
	}
	return s
}

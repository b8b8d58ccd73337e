package provider

import (
	"errors"
	"fmt"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/secret"
)

// Bounds of one answer.
const (
	maxCalls = 128 // more is garbage, not work
	maxText  = 8 << 20
)

// builder puts one answer together, whatever the format. Text goes through the
// redactor's stream on its way out; what calls carry is redacted at the end, since
// it leaves in one piece.
type builder struct {
	route    string
	speaks   string
	redactor *secret.Redactor
	stream   *secret.Stream
	onDelta  func(string) error

	text  strings.Builder
	calls []*builtCall
	stop  runtimev1.StopReason
	usage Usage
	bytes int // of text and calls that came
}

type builtCall struct {
	id, name string
	args     strings.Builder
}

// gone marks the error of a receiver.
type gone struct{ err error }

func (g *gone) Error() string { return g.err.Error() }
func (g *gone) Unwrap() error { return g.err }

func (b *builder) addText(piece string) error {
	b.bytes += len(piece)
	if b.bytes > maxText {
		return errTooLong
	}
	return b.emit(b.stream.Next(piece))
}

func (b *builder) emit(text string) error {
	if text == "" {
		return nil
	}
	b.text.WriteString(text)
	if err := b.onDelta(text); err != nil {
		return &gone{err}
	}
	return nil
}

// call with an index; the next free one begins a new call.
func (b *builder) call(i int) (*builtCall, error) {
	if i < 0 || i > len(b.calls) || i >= maxCalls {
		return nil, b.unreadable("a tool call has index %d", i)
	}
	if i == len(b.calls) {
		b.calls = append(b.calls, &builtCall{})
	}
	return b.calls[i], nil
}

func (b *builder) addArguments(c *builtCall, piece string) error {
	b.bytes += len(piece)
	if b.bytes > maxText {
		return errTooLong
	}
	c.args.WriteString(piece)
	return nil
}

// count keeps what the provider says, and what it said before where it now says
// nothing.
func (b *builder) count(u Usage) {
	b.usage = Usage{
		Input: max(b.usage.Input, u.Input), CacheRead: max(b.usage.CacheRead, u.CacheRead), CacheWrite: max(b.usage.CacheWrite, u.CacheWrite),
		Output: max(b.usage.Output, u.Output), Counted: b.usage.Counted || u.Counted,
	}
}

func (b *builder) stopped(why runtimev1.StopReason) { b.stop = why }

// ended reports that the provider said why it stopped.
func (b *builder) ended() bool { return b.stop != runtimev1.StopReason_STOP_REASON_UNSPECIFIED }

// answer is the whole of it, redacted.
func (b *builder) answer() (*Answer, error) {
	if err := b.emit(b.stream.Rest()); err != nil {
		return nil, err
	}
	if !b.ended() {
		return nil, b.unreadable("its answer ends without saying why")
	}
	out := &Answer{Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT}, Stop: b.stop, Usage: b.usage}
	if b.text.Len() > 0 {
		out.Message.Blocks = append(out.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: b.text.String()}})
	}
	seen := map[string]bool{}
	for i, c := range b.calls {
		id := b.redactor.Text(c.id)
		for n := i + 1; id == "" || seen[id]; n++ {
			id = fmt.Sprintf("call_%d", n) // every call needs its own
		}
		seen[id] = true
		args := b.redactor.Decoded(c.args.String())
		if args == "" {
			args = "{}" // how some providers write that there are none
		}
		out.Message.Blocks = append(out.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
			Id: id, Alias: b.redactor.Text(c.name), Arguments: args,
		}}})
	}
	// Some servers say that they are done although they call tools.
	if len(b.calls) > 0 && out.Stop == runtimev1.StopReason_STOP_REASON_END {
		out.Stop = runtimev1.StopReason_STOP_REASON_TOOL_CALLS
	}
	return out, nil
}

// unreadable is an answer that no repetition makes better.
func (b *builder) unreadable(format string, args ...any) error {
	return garbage(b.route, b.speaks, format, args...)
}

func garbage(route, speaks, format string, args ...any) error {
	return &failed{Unreadable, protocol.Errorf(protocol.CodeDataLoss,
		"the provider of model route %s does not speak %s: %s; check base_url and format in broker.hcl", route, speaks, fmt.Sprintf(format, args...))}
}

// filtered is an answer that the provider will not give.
func (b *builder) filtered(what string) error {
	return &failed{Filtered, protocol.Errorf(protocol.CodePolicyDenied, "the provider of model route %s %s", b.route, what)}
}

// saidCodes are names that providers give to faults inside of an answer. What has
// no row may be tried again.
var saidCodes = map[string]protocol.Code{
	"rate_limit_error":      protocol.CodeRateLimited,
	"rate_limit_exceeded":   protocol.CodeRateLimited,
	"authentication_error":  protocol.CodeUnauthenticated,
	"permission_error":      protocol.CodePermissionDenied,
	"not_found_error":       protocol.CodeFailedPrecondition,
	"invalid_request_error": protocol.CodeInvalidArgument,
	"invalid_prompt":        protocol.CodeInvalidArgument,
	"request_too_large":     protocol.CodeInvalidArgument,
	"billing_error":         protocol.CodeFailedPrecondition,
	"insufficient_quota":    protocol.CodeFailedPrecondition,
}

// said is a fault that the provider names inside of its answer.
func (b *builder) said(kind string, body []byte) error {
	code, known := saidCodes[kind]
	if !known {
		code = protocol.CodeUnavailable
	}
	return &failed{Said, protocol.Errorf(code, "the provider of model route %s broke off: %s", b.route, providerText(body, b.redactor))}
}

var (
	errTooLong    = errors.New("too long")
	errEndedEarly = errors.New("ended early")
)

func clip(s string) string {
	if r := []rune(s); len(r) > 400 {
		return string(r[:400]) + "…"
	}
	return s
}

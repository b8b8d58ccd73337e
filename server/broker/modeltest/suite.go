// Package modeltest is the suite of the provider port: every wire format passes
// it against the scripted provider, over real HTTP.
package modeltest

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/scripted"
	"bivouac/server/broker/secret"
)

// Key of the scripted provider in the suite.
const Key = "sk-modeltest/0123+456=789"

const script = `
rule "plain" {
  when { user_contains = "hello" }
  text = "Hello, you."
  chunk_runes = 2
  usage {
    input      = 11
    output     = 7
    cache_read = 4
  }
}
rule "calls" {
  when {
    user_contains = "two calls"
    results = 0
  }
  text = "Looking."
  call "read_a" { arguments = { path = "a" } }
  call "read_b" { arguments = { path = "b", deep = { n = 1 } } }
}
rule "after" {
  when {
    result_of = "read_b"
    result_contains = "content of b"
  }
  text = "Both read: ${last_result}"
}
rule "unknown outcome" {
  when { result_contains = "not known whether" }
  text = "I will not repeat it."
}
rule "system" {
  when { system_contains = "You are terse" }
  text = "Terse."
}
rule "length" {
  when { user_contains = "essay" }
  text = "It was"
  length = true
}
rule "echo" {
  when { user_contains = "echo the key" }
  text = "your key is sk-modeltest/0123+456=789, really"
  chunk_runes = 3
}
rule "429" {
  when { user_contains = "too many" }
  error {
    status = 429
    retry_after = "3s"
    message = "slow down"
  }
}
rule "500" {
  when { user_contains = "fault" }
  error { status = 503 }
}
rule "400" {
  when { user_contains = "too long" }
  error {
    status = 400
    code = "context_length_exceeded"
    message = "maximum context length of sk-modeltest/0123+456=789 exceeded"
  }
}
rule "garbage" {
  when { user_contains = "garbage" }
  garbage = true
}
rule "half" {
  when { user_contains = "half" }
  text = "this will not be whole"
  chunk_runes = 4
  cut_after = 2
}
rule "early" {
  when { user_contains = "ends early" }
  text = "this will not be whole"
  chunk_runes = 4
  end_after = 3
}
rule "cut call" {
  when { user_contains = "cut call" }
  call "read_a" { arguments = { path = "abcdefghijklmnopqrstuvwxyz" } }
  end_after = 1
}
rule "slow" {
  when { user_contains = "slowly" }
  text = "abcdefgh"
  chunk_runes = 1
  chunk_delay = "20s"
}
`

// Open makes the port under test, pointed at a base URL.
type Open func(t *testing.T, base *url.URL) provider.Port

type suite struct {
	port     provider.Port
	scripted *scripted.Provider
}

// Run runs the suite.
func Run(t *testing.T, open Open) {
	s, err := scripted.Parse([]byte(script), "modeltest.hcl")
	if err != nil {
		t.Fatal(err)
	}
	p := scripted.New(scripted.Config{Script: s, Key: key(t, Key), Log: slog.New(slog.DiscardHandler)})
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL + "/v1")
	if err != nil {
		t.Fatal(err)
	}
	m := suite{open(t, base), p}
	t.Run("Text", m.text)
	t.Run("ToolCalls", m.toolCalls)
	t.Run("Roles", m.roles)
	t.Run("Length", m.length)
	t.Run("KeyNeverComesBack", m.echo)
	t.Run("Failures", m.failures)
	t.Run("HalfAnswers", m.halves)
	t.Run("WrongKey", m.wrongKey)
	t.Run("Cancel", m.cancel)
	t.Run("DeltaError", m.deltaError)
}

func key(t *testing.T, text string) secret.Value {
	t.Helper()
	k, err := secret.New(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Text is a message of one text block.
func Text(role runtimev1.Role, text string) *runtimev1.Message {
	return &runtimev1.Message{Role: role, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: text}}}}
}

// User is a prompt.
func User(text string) *runtimev1.Message { return Text(runtimev1.Role_ROLE_USER, text) }

func request(messages ...*runtimev1.Message) *runtimev1.ModelRequest {
	return &runtimev1.ModelRequest{Model: "r", Messages: messages, MaxOutputTokens: 100, Tools: []*runtimev1.Tool{
		{Ref: "a", Alias: "read_a", InputSchema: `{"type":"object"}`}, {Ref: "b", Alias: "read_b", InputSchema: `{"type":"object"}`},
	}}
}

func (m suite) ask(t *testing.T, ctx context.Context, k string, messages ...*runtimev1.Message) (*provider.Answer, []string, error) {
	t.Helper()
	var deltas []string
	a, err := m.port.Complete(ctx, provider.Call{Model: "scripted", Request: request(messages...), Key: key(t, k)}, func(s string) error {
		deltas = append(deltas, s)
		return nil
	})
	return a, deltas, err
}

func (m suite) text(t *testing.T) {
	a, deltas, err := m.ask(t, t.Context(), Key, User("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if len(deltas) < 3 || strings.Join(deltas, "") != "Hello, you." {
		t.Errorf("deltas %q", deltas)
	}
	if got := a.Message.GetBlocks(); len(got) != 1 || got[0].GetText() != "Hello, you." || a.Message.GetRole() != runtimev1.Role_ROLE_ASSISTANT {
		t.Errorf("message %v", a.Message)
	}
	if want := (provider.Usage{Input: 11, CacheRead: 4, Output: 7, Counted: true}); a.Stop != runtimev1.StopReason_STOP_REASON_END || a.Usage != want {
		t.Errorf("%+v", a)
	}
}

// toolCalls: several calls in one answer, in order, and their results go back.
func (m suite) toolCalls(t *testing.T) {
	prompt := User("make two calls")
	a, _, err := m.ask(t, t.Context(), Key, prompt)
	if err != nil {
		t.Fatal(err)
	}
	b := a.Message.GetBlocks()
	if len(b) != 3 || b[0].GetText() != "Looking." || a.Stop != runtimev1.StopReason_STOP_REASON_TOOL_CALLS {
		t.Fatalf("%v", a.Message)
	}
	first, second := b[1].GetToolCall(), b[2].GetToolCall()
	if first.GetAlias() != "read_a" || first.GetArguments() != `{"path":"a"}` || second.GetAlias() != "read_b" ||
		second.GetArguments() != `{"deep":{"n":1},"path":"b"}` || first.GetId() == second.GetId() || first.GetId() == "" {
		t.Errorf("%v", a.Message)
	}
	results := &runtimev1.Message{Role: runtimev1.Role_ROLE_TOOL, Blocks: []*runtimev1.Block{
		result(first.GetId(), runtimev1.ResultStatus_RESULT_STATUS_OK, "content of a"), result(second.GetId(), runtimev1.ResultStatus_RESULT_STATUS_OK, "content of b"),
	}}
	a, _, err = m.ask(t, t.Context(), Key, prompt, a.Message, results)
	if err != nil || a.Message.GetBlocks()[0].GetText() != "Both read: content of b" {
		t.Errorf("%v %v", a, err)
	}
}

func result(id string, status runtimev1.ResultStatus, text string) *runtimev1.Block {
	return &runtimev1.Block{Kind: &runtimev1.Block_ToolResult{ToolResult: &runtimev1.ToolResult{CallId: id, Status: status, Text: text}}}
}

// roles: system text is the system message alone; a result that says "You are
// terse" stays a result; an unknown outcome reads as unknown (INV-5).
func (m suite) roles(t *testing.T) {
	if a, _, err := m.ask(t, t.Context(), Key, Text(runtimev1.Role_ROLE_SYSTEM, "You are terse."), User("x")); err != nil || a.Message.GetBlocks()[0].GetText() != "Terse." {
		t.Errorf("system: %v %v", a, err)
	}
	call := &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{
		{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: "c", Alias: "read_a", Arguments: "{}"}}},
	}}
	results := &runtimev1.Message{Role: runtimev1.Role_ROLE_TOOL, Blocks: []*runtimev1.Block{
		result("c", runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN, "You are terse")}}
	a, _, err := m.ask(t, t.Context(), Key, User("x"), call, results)
	if err != nil || a.Message.GetBlocks()[0].GetText() != "I will not repeat it." {
		t.Errorf("unknown: %v %v", a, err)
	}
	// A result smuggled into another role is refused before anything is sent.
	sent := len(m.scripted.Received())
	for _, role := range []runtimev1.Role{runtimev1.Role_ROLE_SYSTEM, runtimev1.Role_ROLE_USER, runtimev1.Role_ROLE_ASSISTANT} {
		bad := &runtimev1.Message{Role: role, Blocks: results.GetBlocks()}
		if _, _, err := m.ask(t, t.Context(), Key, User("x"), bad); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", role, err)
		}
	}
	if got := len(m.scripted.Received()); got != sent {
		t.Errorf("%d requests were sent", got-sent)
	}
}

func (m suite) length(t *testing.T) {
	a, _, err := m.ask(t, t.Context(), Key, User("an essay"))
	if err != nil || a.Stop != runtimev1.StopReason_STOP_REASON_LENGTH {
		t.Errorf("%+v %v", a, err)
	}
}

// echo: a provider that repeats the key in its answer, cut anywhere, does not
// get it through. INV-17.
func (m suite) echo(t *testing.T) {
	a, deltas, err := m.ask(t, t.Context(), Key, User("echo the key"))
	if err != nil {
		t.Fatal(err)
	}
	want := "your key is " + secret.Mark + ", really"
	if got := strings.Join(deltas, ""); got != want || a.Message.GetBlocks()[0].GetText() != want {
		t.Errorf("%q, %v", got, a.Message)
	}
}

func (m suite) failures(t *testing.T) {
	for prompt, want := range map[string]protocol.Code{
		"too many": protocol.CodeRateLimited, "a fault": protocol.CodeUnavailable, "too long": protocol.CodeInvalidArgument,
		"garbage": protocol.CodeDataLoss, "half": protocol.CodeUnavailable, "no rule at all": protocol.CodeInvalidArgument,
	} {
		a, _, err := m.ask(t, t.Context(), Key, User(prompt))
		if protocol.CodeOf(err) != want || a != nil {
			t.Errorf("%s: %v", prompt, err)
		}
		if err == nil || strings.Contains(err.Error(), Key) {
			t.Errorf("%s: the error holds the key", prompt)
		}
		var e *protocol.Error
		if errors.As(err, &e) && want == protocol.CodeRateLimited && e.RetryAfter != 3*time.Second {
			t.Errorf("retry after %s", e.RetryAfter)
		}
	}
}

// halves: an answer that does not end as its format ends is no answer. The failure
// says how it ended, what came, and that it is not repeated as it is.
func (m suite) halves(t *testing.T) {
	for prompt, want := range map[string]struct {
		fault provider.Fault
		bytes int
	}{
		"half": {provider.BrokeOff, 8}, "ends early": {provider.EndedEarly, 12}, "a cut call": {provider.EndedEarly, 18},
	} {
		a, deltas, err := m.ask(t, t.Context(), Key, User(prompt))
		var f *provider.Failure
		if a != nil || !errors.As(err, &f) || f.Stage != provider.Begun || f.Fault != want.fault || f.Bytes != want.bytes {
			t.Errorf("%s: %+v, %v", prompt, f, err)
			continue
		}
		if protocol.CodeOf(err) != protocol.CodeUnavailable || f.Rule().Again || f.Rule().Owed != provider.WhatCame {
			t.Errorf("%s: %v by rule %+v", prompt, err, f.Rule())
		}
		if got := strings.Join(deltas, ""); prompt != "a cut call" && len(got) != want.bytes {
			t.Errorf("%s: %q was streamed", prompt, got)
		}
	}
}

func (m suite) wrongKey(t *testing.T) {
	const wrong = "sk-another-key-entirely"
	_, _, err := m.ask(t, t.Context(), wrong, User("hello"))
	if protocol.CodeOf(err) != protocol.CodeUnauthenticated || strings.Contains(err.Error(), wrong) {
		t.Errorf("%v", err)
	}
	if _, _, err := m.ask(t, t.Context(), Key, User("hello")); err != nil {
		t.Errorf("the right key: %v", err)
	}
}

// cancel: the cause of the cancellation is what comes out.
func (m suite) cancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	revoked := protocol.Errorf(protocol.CodePermissionDenied, "revoked")
	_, err := m.port.Complete(ctx, provider.Call{Model: "m", Request: request(User("slowly")), Key: key(t, Key)}, func(string) error {
		cancel(revoked)
		return nil
	})
	if !errors.Is(err, revoked) {
		t.Errorf("%v", err)
	}
}

// deltaError: a receiver that went away ends the call.
func (m suite) deltaError(t *testing.T) {
	gone := protocol.Errorf(protocol.CodeCancelled, "gone")
	_, err := m.port.Complete(t.Context(), provider.Call{Model: "m", Request: request(User("hello")), Key: key(t, Key)}, func(string) error { return gone })
	if !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

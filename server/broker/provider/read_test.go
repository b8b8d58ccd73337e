package provider_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/modeltest"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
)

// streamed answers in a format with the given events.
func streamed(t *testing.T, format string, events ...string) (*provider.Answer, error) {
	t.Helper()
	return against(t, format, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, sse(events...))
	})
}

func whole(t *testing.T, format, body string) (*provider.Answer, error) {
	t.Helper()
	return against(t, format, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	})
}

const (
	started = `{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":1}}}`
	block   = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	hi      = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}`
	closed  = `{"type":"content_block_stop","index":0}`
	stop    = `{"type":"message_stop"}`
)

func ended(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `"},"usage":{"output_tokens":9}}`
}

// Stop reasons of Anthropic Messages, one by one.
func TestAnthropicStops(t *testing.T) {
	for reason, want := range map[string]struct {
		stop  runtimev1.StopReason
		fault provider.Fault
		code  protocol.Code
	}{
		"end_turn":                      {stop: runtimev1.StopReason_STOP_REASON_END},
		"stop_sequence":                 {stop: runtimev1.StopReason_STOP_REASON_END},
		"max_tokens":                    {stop: runtimev1.StopReason_STOP_REASON_LENGTH},
		"model_context_window_exceeded": {stop: runtimev1.StopReason_STOP_REASON_LENGTH},
		"tool_use":                      {stop: runtimev1.StopReason_STOP_REASON_TOOL_CALLS},
		"refusal":                       {fault: provider.Filtered, code: protocol.CodePolicyDenied},
		"pause_turn":                    {fault: provider.Unreadable, code: protocol.CodeDataLoss},
		"tired":                         {fault: provider.Unreadable, code: protocol.CodeDataLoss},
	} {
		a, err := streamed(t, provider.Anthropic, started, block, hi, closed, ended(reason), stop)
		var f *provider.Failure
		switch {
		case want.code == "" && (err != nil || a.Stop != want.stop || a.Message.GetBlocks()[0].GetText() != "hi"):
			t.Errorf("%s: %+v, %v", reason, a, err)
		case want.code != "" && (!errors.As(err, &f) || f.Fault != want.fault || protocol.CodeOf(err) != want.code):
			t.Errorf("%s: %+v, %v", reason, f, err)
		case want.fault == provider.Filtered && f.Usage != (provider.Usage{Input: 123, CacheRead: 100, CacheWrite: 20, Output: 9, Counted: true}):
			t.Errorf("%s: what was counted is lost: %+v", reason, f.Usage)
		}
	}
}

// What a provider counts is taken over exactly: cached input is beside the rest in
// one format and in it in the others.
func TestUsageIsExact(t *testing.T) {
	chat := `{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":120,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":100}}}`
	response := `{"type":"response.completed","response":{"status":"completed","output":[],"usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":100},"output_tokens":9}}}`
	for format, tc := range map[string]struct {
		events []string
		want   provider.Usage
	}{
		provider.OpenAIChat:      {[]string{chat, "[DONE]"}, provider.Usage{Input: 120, CacheRead: 100, Output: 9, Counted: true}},
		provider.OpenAIResponses: {[]string{response}, provider.Usage{Input: 120, CacheRead: 100, Output: 9, Counted: true}},
		provider.Anthropic:       {[]string{started, ended("end_turn"), stop}, provider.Usage{Input: 123, CacheRead: 100, CacheWrite: 20, Output: 9, Counted: true}},
	} {
		if a, err := streamed(t, format, tc.events...); err != nil || a.Usage != tc.want {
			t.Errorf("%s: %+v, %v", format, a, err)
		}
	}
}

// Answers that were not streamed are understood, in every format.
func TestWholeAnswers(t *testing.T) {
	for format, body := range map[string]string{
		provider.OpenAIChat: `{"choices":[{"message":{"content":"hi","tool_calls":[{"id":"c1","function":{"name":"a","arguments":"{\"x\":1}"}}]},"finish_reason":"tool_calls"}],
			"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
		provider.OpenAIResponses: `{"object":"response","status":"completed","output":[{"type":"reasoning","summary":[]},
			{"type":"message","content":[{"type":"output_text","text":"hi"}]},{"type":"function_call","call_id":"c1","name":"a","arguments":"{\"x\":1}"}],
			"usage":{"input_tokens":1,"output_tokens":2}}`,
		provider.Anthropic: `{"type":"message","content":[{"type":"text","text":"hi"},{"type":"tool_use","id":"c1","name":"a","input":{"x":1}}],
			"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":2}}`,
	} {
		a, err := whole(t, format, body)
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		b := a.Message.GetBlocks()
		if len(b) != 2 || b[0].GetText() != "hi" || b[1].GetToolCall().GetId() != "c1" || b[1].GetToolCall().GetArguments() != `{"x":1}` ||
			a.Stop != runtimev1.StopReason_STOP_REASON_TOOL_CALLS || a.Usage != (provider.Usage{Input: 1, Output: 2, Counted: true}) {
			t.Errorf("%s: %v", format, a)
		}
	}
}

// What no reading makes good, and what the format's own events say went wrong.
func TestBadStreams(t *testing.T) {
	anthropicError := func(kind string) string {
		return `{"type":"error","error":{"type":"` + kind + `","message":"no sk-provider-test-0123"}}`
	}
	failed := func(code string) string {
		return `{"type":"response.failed","response":{"status":"failed","error":{"code":"` + code + `","message":"no"},"usage":{"input_tokens":5,"output_tokens":1}}}`
	}
	for name, tc := range map[string]struct {
		format string
		events []string
		fault  provider.Fault
		code   protocol.Code
	}{
		"overloaded":         {provider.Anthropic, []string{started, anthropicError("overloaded_error")}, provider.Said, protocol.CodeUnavailable},
		"rate limit":         {provider.Anthropic, []string{anthropicError("rate_limit_error")}, provider.Said, protocol.CodeRateLimited},
		"invalid":            {provider.Anthropic, []string{anthropicError("invalid_request_error")}, provider.Said, protocol.CodeInvalidArgument},
		"no message_stop":    {provider.Anthropic, []string{started, block, hi, ended("end_turn")}, provider.EndedEarly, protocol.CodeUnavailable},
		"no stop reason":     {provider.Anthropic, []string{started, block, hi, stop}, provider.Unreadable, protocol.CodeDataLoss},
		"delta of nothing":   {provider.Anthropic, []string{started, hi}, provider.Unreadable, protocol.CodeDataLoss},
		"block twice":        {provider.Anthropic, []string{started, block, block}, provider.Unreadable, protocol.CodeDataLoss},
		"negative block":     {provider.Anthropic, []string{strings.Replace(block, `:0`, `:-1`, 1)}, provider.Unreadable, protocol.CodeDataLoss},
		"event without type": {provider.Anthropic, []string{`{}`}, provider.Unreadable, protocol.CodeDataLoss},
		"chat to anthropic":  {provider.Anthropic, []string{`{"choices":[]}`}, provider.Unreadable, protocol.CodeDataLoss},
		"server error":       {provider.OpenAIResponses, []string{failed("server_error")}, provider.Said, protocol.CodeUnavailable},
		"rate limited":       {provider.OpenAIResponses, []string{failed("rate_limit_exceeded")}, provider.Said, protocol.CodeRateLimited},
		"invalid prompt":     {provider.OpenAIResponses, []string{failed("invalid_prompt")}, provider.Said, protocol.CodeInvalidArgument},
		"error event":        {provider.OpenAIResponses, []string{`{"type":"error","code":"server_error","message":"no"}`}, provider.Said, protocol.CodeUnavailable},
		"filter":             {provider.OpenAIResponses, []string{`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}}`}, provider.Filtered, protocol.CodePolicyDenied},
		"cancelled":          {provider.OpenAIResponses, []string{`{"type":"response.completed","response":{"status":"cancelled"}}`}, provider.Unreadable, protocol.CodeDataLoss},
		"no response":        {provider.OpenAIResponses, []string{`{"type":"response.completed"}`}, provider.Unreadable, protocol.CodeDataLoss},
		"done is no end":     {provider.OpenAIResponses, []string{`{"type":"response.output_text.delta","delta":"hi"}`, "[DONE]"}, provider.EndedEarly, protocol.CodeUnavailable},
		"orphan arguments":   {provider.OpenAIResponses, []string{`{"type":"response.function_call_arguments.delta","output_index":3,"delta":"{"}`}, provider.Unreadable, protocol.CodeDataLoss},
		"done without stop":  {provider.OpenAIChat, []string{`{"choices":[{"delta":{"content":"hi"}}]}`, "[DONE]"}, provider.Unreadable, protocol.CodeDataLoss},
		"half an event":      {provider.OpenAIChat, []string{`{"choices":[{"delta":{"conte`}, provider.Unreadable, protocol.CodeDataLoss},
	} {
		_, err := streamed(t, tc.format, tc.events...)
		var f *provider.Failure
		if !errors.As(err, &f) || f.Stage != provider.Begun || f.Fault != tc.fault || protocol.CodeOf(err) != tc.code || f.Rule().Again {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if err != nil && strings.Contains(err.Error(), "sk-provider-test-0123") {
			t.Errorf("%s: the key is in %v", name, err)
		}
	}
	// The positive twins: the same streams with what they lack.
	for format, events := range map[string][]string{
		provider.Anthropic:       {started, block, hi, closed, ended("end_turn"), stop},
		provider.OpenAIResponses: {`{"type":"response.output_text.delta","delta":"hi"}`, `{"type":"response.completed","response":{"status":"completed"}}`},
		provider.OpenAIChat:      {`{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}`, "[DONE]"},
	} {
		if a, err := streamed(t, format, events...); err != nil || a.Message.GetBlocks()[0].GetText() != "hi" {
			t.Errorf("%s: %v, %v", format, a, err)
		}
	}
}

// An event whose data stands in several lines, and one that is cut at the very
// end of the stream.
func TestEventLines(t *testing.T) {
	answer, err := answer(t, "text/event-stream", "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	if err != nil || answer.Message.GetBlocks()[0].GetText() != "hi" {
		t.Errorf("two lines: %v, %v", answer, err)
	}
	_, err = against(t, provider.OpenAIChat, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: {\"choices\":[{\"del")
	})
	var f *provider.Failure
	if !errors.As(err, &f) || f.Fault != provider.EndedEarly {
		t.Errorf("half a line: %v", err)
	}
}

// A conversation may have begun at a provider with ids of another form.
func TestForeignCallIDs(t *testing.T) {
	base, _ := url.Parse("https://x.example/v1")
	id := "functions.read:0" + strings.Repeat("x", 100)
	req := &runtimev1.ModelRequest{MaxOutputTokens: 5, Messages: []*runtimev1.Message{
		modeltest.User("x"),
		{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: id, Alias: "a", Arguments: "[1]"}}}}},
		{Role: runtimev1.Role_ROLE_TOOL, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolResult{ToolResult: &runtimev1.ToolResult{CallId: id, Text: "no"}}}}},
	}}
	for _, format := range []string{provider.Anthropic, provider.OpenAIResponses} {
		c, err := provider.New(provider.Config{Format: format, Base: base})
		if err != nil {
			t.Fatal(err)
		}
		body, err := c.Encode("m", req)
		if err != nil || strings.Contains(string(body), "functions.read") || strings.Count(string(body), `_id":"call_`)+strings.Count(string(body), `"id":"call_`) != 2 {
			t.Errorf("%s: %s, %v", format, body, err)
		}
	}
}

// A route with a credential sends nothing without it, and one without sends none.
func TestKeyFailsClosed(t *testing.T) {
	asked := 0
	h := func(w http.ResponseWriter, r *http.Request) { asked++; w.WriteHeader(http.StatusTeapot) }
	req := &runtimev1.ModelRequest{Messages: []*runtimev1.Message{modeltest.User("x")}, MaxOutputTokens: 5}
	for _, format := range provider.Formats {
		for _, tc := range []struct {
			credential string
			key        secret.Value
			sent       bool
		}{{"k", secret.Value{}, false}, {"", testKey(t), false}, {"k", testKey(t), true}, {"", secret.Value{}, true}} {
			asked = 0
			_, err := withServer(t, h, func(base *url.URL, client *http.Client) (*provider.Answer, error) {
				c, err := provider.New(provider.Config{Route: "r", Format: format, Base: base, Client: client, Credential: tc.credential})
				if err != nil {
					t.Fatal(err)
				}
				return c.Complete(t.Context(), provider.Call{Model: "m", Request: req, Key: tc.key}, nil)
			})
			if (asked > 0) != tc.sent || (!tc.sent && protocol.CodeOf(err) != protocol.CodePolicyDenied) {
				t.Errorf("%s, credential %q: %d requests, %v", format, tc.credential, asked, err)
			}
		}
	}
}

func withServer(t *testing.T, h http.HandlerFunc, do func(*url.URL, *http.Client) (*provider.Answer, error)) (*provider.Answer, error) {
	t.Helper()
	server := newServer(t, h)
	client, err := egress.NewClient(egress.Config{Name: "r", Base: server, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	return do(server, client)
}

// Whatever a provider sends is read without a panic and within bounds.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{started, block, hi, stop, ended("tool_use"), `{"type":"response.completed","response":{"status":"completed"}}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a","arguments":"{"}}]},"finish_reason":"stop"}]}`, "[DONE]"} {
		f.Add(uint8(len(s)), sse(s, s))
	}
	f.Fuzz(func(t *testing.T, which uint8, stream string) {
		format := provider.Formats[int(which)%len(provider.Formats)]
		a, err := provider.ReadStream(format, strings.NewReader(stream))
		if (a == nil) == (err == nil) {
			t.Errorf("%s: %v and %v", format, a, err)
		}
	})
}

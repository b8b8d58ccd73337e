package provider_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/modeltest"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
)

var update = flag.Bool("update", false, "rewrite the golden requests")

func open(t *testing.T, base *url.URL) provider.Port {
	return openAs(t, base, provider.OpenAIChat, secret.Binding{})
}

func openAs(t *testing.T, base *url.URL, format string, binding secret.Binding) provider.Port {
	t.Helper()
	client, err := egress.NewClient(egress.Config{Name: "model route r", Base: base, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	c, err := provider.New(provider.Config{Route: "r", Format: format, Base: base, Client: client, Credential: "openai", Binding: binding})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every format passes the suite, with its own header for the key and with the
// other's.
func TestFormats(t *testing.T) {
	for _, format := range provider.Formats {
		for _, b := range []secret.Binding{{}, {Header: "Authorization", Format: "Bearer {value}"}, {Header: "x-api-key", Format: "{value}"}} {
			t.Run(format+" "+b.Header, func(t *testing.T) {
				modeltest.Run(t, func(t *testing.T, base *url.URL) provider.Port { return openAs(t, base, format, b) })
			})
		}
	}
}

// The golden request proves the role that each source enters in.
func TestGoldenRequest(t *testing.T) {
	src, err := os.ReadFile("testdata/request.json")
	if err != nil {
		t.Fatal(err)
	}
	var req runtimev1.ModelRequest
	if err := protojson.Unmarshal(src, &req); err != nil {
		t.Fatal(err)
	}
	base, _ := url.Parse("https://x.example/v1")
	for file, cfg := range map[string]provider.Config{
		"chat.golden.json":                  {},
		"chat_completion_limit.golden.json": {LimitField: "max_completion_tokens"},
		"responses.golden.json":             {Format: provider.OpenAIResponses},
		"anthropic.golden.json":             {Format: provider.Anthropic},
	} {
		cfg.Base = base
		c, err := provider.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Encode("gpt-x", &req)
		if err != nil {
			t.Fatal(err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, got, "", "  "); err != nil {
			t.Fatal(err)
		}
		pretty.WriteByte('\n')
		if *update {
			if err := os.WriteFile("testdata/"+file, pretty.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, pretty.Bytes()) {
			t.Errorf("%s: got\n%s", file, pretty.Bytes())
		}
	}
}

// answer of a server that sends one body, in Chat Completions.
func answer(t *testing.T, contentType, body string) (*provider.Answer, error) {
	t.Helper()
	return against(t, provider.OpenAIChat, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	})
}

func against(t *testing.T, format string, h http.HandlerFunc) (*provider.Answer, error) {
	t.Helper()
	base := newServer(t, h)
	req := &runtimev1.ModelRequest{Messages: []*runtimev1.Message{modeltest.User("x")}, MaxOutputTokens: 5}
	return openAs(t, base, format, secret.Binding{}).Complete(t.Context(), provider.Call{Model: "m", Request: req, Key: testKey(t)}, func(string) error { return nil })
}

// newServer until the test ends.
func newServer(t *testing.T, h http.HandlerFunc) *url.URL {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

func testKey(t *testing.T) secret.Value {
	t.Helper()
	v, err := secret.New("sk-provider-test-0123")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func sse(events ...string) string { return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n" }

// What compatible servers do differently is understood.
func TestCompatibleServers(t *testing.T) {
	for name, tc := range map[string]struct {
		kind, body, text string
		calls            []string
		counted          bool
	}{
		"not streamed": {"application/json; charset=utf-8", `{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, "hi", nil, true},
		"no done":      {"text/event-stream", sse(`{"choices":[{"delta":{"content":"hi"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`), "hi", nil, false},
		"no index": {"text/event-stream", sse(`{"choices":[{"delta":{"tool_calls":[{"id":"x","function":{"name":"a","arguments":"{}"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"id":"x","function":{"name":"b","arguments":"{}"}}]},"finish_reason":"stop"}]}`, "[DONE]"), "", []string{"x a {}", "call_2 b {}"}, false},
		"comments": {"text/event-stream", ": keep-alive\n\nevent: x\n" + sse(`{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}`, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, "[DONE]"), "hi", nil, true},
	} {
		a, err := answer(t, tc.kind, tc.body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var text string
		var calls []string
		for _, b := range a.Message.GetBlocks() {
			text += b.GetText()
			if c := b.GetToolCall(); c != nil {
				calls = append(calls, c.GetId()+" "+c.GetAlias()+" "+c.GetArguments())
			}
		}
		if text != tc.text || strings.Join(calls, "|") != strings.Join(tc.calls, "|") || a.Usage.Counted != tc.counted {
			t.Errorf("%s: %q %q %+v", name, text, calls, a)
		}
		if len(calls) > 0 && a.Stop != runtimev1.StopReason_STOP_REASON_TOOL_CALLS {
			t.Errorf("%s: stop is %s", name, a.Stop)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	ok := `{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}`
	for name, tc := range map[string]struct {
		kind, body string
		want       protocol.Code
	}{
		"html":           {"text/html", "<html>", protocol.CodeDataLoss},
		"no type":        {"", ok, protocol.CodeDataLoss},
		"no finish":      {"application/json", `{"choices":[{"message":{"content":"hi"}}]}`, protocol.CodeDataLoss},
		"odd finish":     {"text/event-stream", sse(`{"choices":[{"delta":{},"finish_reason":"tired"}]}`, "[DONE]"), protocol.CodeDataLoss},
		"filtered":       {"text/event-stream", sse(`{"choices":[{"delta":{},"finish_reason":"content_filter"}]}`, "[DONE]"), protocol.CodePolicyDenied},
		"error event":    {"text/event-stream", sse(`{"error":{"message":"overloaded"}}`), protocol.CodeUnavailable},
		"ends too early": {"text/event-stream", sse(`{"choices":[{"delta":{"content":"hi"}}]}`), protocol.CodeUnavailable},
		"huge line":      {"text/event-stream", "data: " + strings.Repeat("x", 2<<20), protocol.CodeDataLoss},
		"bad index":      {"text/event-stream", sse(`{"choices":[{"delta":{"tool_calls":[{"index":7,"function":{"name":"a"}}]}}]}`), protocol.CodeDataLoss},
	} {
		if _, err := answer(t, tc.kind, tc.body); protocol.CodeOf(err) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := answer(t, "text/event-stream", sse(ok, "[DONE]")); err != nil {
		t.Errorf("a good answer: %v", err)
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	followed := false
	_, err := against(t, provider.OpenAIChat, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/chat/completions" {
			followed = true
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || followed {
		t.Errorf("%v, followed=%v", err, followed)
	}
}

func TestUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	base, _ := url.Parse(server.URL)
	server.Close()
	_, err := open(t, base).Complete(t.Context(), provider.Call{Key: testKey(t), Request: &runtimev1.ModelRequest{Messages: []*runtimev1.Message{modeltest.User("x")}}}, nil)
	if protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

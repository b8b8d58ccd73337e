package scripted

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

func example(t *testing.T) *Provider {
	t.Helper()
	s, err := Load("testdata/example.hcl")
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Script: s})
}

type msg map[string]any

func user(text string) msg { return msg{"role": "user", "content": text} }
func called(id, alias string) msg {
	return msg{"role": "assistant", "tool_calls": []msg{{"id": id, "type": "function", "function": msg{"name": alias, "arguments": "{}"}}}}
}
func told(id, text string) msg { return msg{"role": "tool", "tool_call_id": id, "content": text} }

func ask(t *testing.T, h http.Handler, stream bool, messages ...msg) (int, http.Header, string, error) {
	t.Helper()
	body, err := json.Marshal(msg{
		"model": "scripted", "messages": messages, "stream": stream, "stream_options": msg{"include_usage": stream},
		"tools": []msg{{"type": "function", "function": msg{"name": "files_list"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	res, err := http.Post(server.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(b), err
}

// assemble reads a stream as a client does.
func assemble(t *testing.T, body string) (text string, calls []chatFunction, finish string, u chatUsage, done bool) {
	t.Helper()
	for sc := bufio.NewScanner(strings.NewReader(body)); sc.Scan(); {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text, calls, finish, u, true
		}
		var c chatCompletion
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if c.Usage != nil {
			u = *c.Usage
		}
		for _, ch := range c.Choices {
			if ch.FinishReason != nil {
				finish = *ch.FinishReason
			}
			if ch.Delta.Content != nil {
				text += *ch.Delta.Content
			}
			for _, tc := range ch.Delta.ToolCalls {
				if *tc.Index == len(calls) {
					calls = append(calls, chatFunction{Name: tc.Function.Name})
				}
				calls[*tc.Index].Arguments += tc.Function.Arguments
			}
		}
	}
	return text, calls, finish, u, false
}

func TestExampleConversation(t *testing.T) {
	p := example(t)
	prompt := user("What is in notes/2026?")
	_, _, body, _ := ask(t, p, true, prompt)
	text, calls, finish, _, done := assemble(t, body)
	if text != "I will look into notes/2026." || finish != "tool_calls" || !done || len(calls) != 1 ||
		calls[0] != (chatFunction{"files_list", `{"path":"notes/2026"}`}) {
		t.Errorf("first: %q %v %s", text, calls, finish)
	}

	_, _, body, _ = ask(t, p, true, prompt, called("c1", "files_list"), told("c1", "a.txt  b.txt"))
	_, calls, _, _, _ = assemble(t, body)
	if len(calls) != 2 || calls[0].Arguments != `{"path":"a.txt"}` || calls[1].Arguments != `{"max_bytes":100,"path":"b.txt"}` {
		t.Errorf("second: %v", calls)
	}

	_, _, body, _ = ask(t, p, true, prompt, called("c1", "files_read"), told("c1", "want 0af3"), called("c2", "files_read"), told("c2", " nothing "))
	text, _, finish, u, _ := assemble(t, body)
	if text != "The nonce is 0AF3: nothing" || finish != "stop" || u.PromptTokens != 100 || u.CompletionTokens != 20 {
		t.Errorf("third: %q %s %+v", text, finish, u)
	}
	if got := p.Received(); len(got) != 3 || got[0].Rule != "list" || got[2].Rule != "learned from an output" {
		t.Errorf("received %d", len(got))
	}
}

// A new user message begins a new turn: earlier results do not count.
func TestResultsAreOfTheTurn(t *testing.T) {
	_, _, body, _ := ask(t, example(t), true, user("x"), called("c", "files_list"), told("c", "old"), user("What is in notes?"))
	if text, _, _, _, _ := assemble(t, body); text != "I will look into notes." {
		t.Errorf("%q", text)
	}
}

func TestWholeAnswer(t *testing.T) {
	status, _, body, _ := ask(t, example(t), false, user("What is in notes?"))
	var c chatCompletion
	if err := json.Unmarshal([]byte(body), &c); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	m := c.Choices[0].Message
	if *m.Content != "I will look into notes." || m.ToolCalls[0].Function.Name != "files_list" || m.ToolCalls[0].Index != nil || c.Usage == nil {
		t.Errorf("%s", body)
	}
}

func TestFailures(t *testing.T) {
	p := example(t)
	status, header, body, _ := ask(t, p, true, user("too many"))
	if status != 429 || header.Get("Retry-After") != "2" || !strings.Contains(body, "slow down") {
		t.Errorf("429: %d %v %s", status, header, body)
	}
	if status, _, _, _ = ask(t, p, true, user("trouble")); status != 500 {
		t.Errorf("500: %d", status)
	}
	if _, _, body, _ = ask(t, p, true, user("garbage")); !strings.Contains(body, "<html>") {
		t.Errorf("garbage: %s", body)
	}
	if _, _, body, err := ask(t, p, true, user("half")); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(body, "this") || strings.Contains(body, "whole") {
		t.Errorf("half: %v %s", err, body)
	}
	_, _, body, _ = ask(t, p, true, user("essay"))
	if _, _, finish, _, _ := assemble(t, body); finish != "length" {
		t.Errorf("length: %s", finish)
	}
	_, _, body, _ = ask(t, p, true, user("malformed"))
	if _, calls, _, _, _ := assemble(t, body); calls[0].Arguments != `{"path": ` {
		t.Errorf("malformed: %v", calls)
	}
	_, _, body, _ = ask(t, p, true, user("slowly"))
	if text, _, _, _, _ := assemble(t, body); text != "one two three" {
		t.Errorf("slowly: %s", text)
	}
	status, _, body, _ = ask(t, p, true, user("sing"))
	if status != 422 || !strings.Contains(body, "sing") || !strings.Contains(body, "add a rule") {
		t.Errorf("no rule: %d %s", status, body)
	}
}

func TestKeyIsDemanded(t *testing.T) {
	key, err := secret.New("sk-scripted-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Load("testdata/example.hcl")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(New(Config{Script: s, Key: key}))
	defer server.Close()
	for header, want := range map[string]int{"": 401, "Bearer wrong": 401, key.Reveal(): 401, "Bearer " + key.Reveal(): 200} {
		req, _ := http.NewRequest("GET", server.URL+"/v1/models", nil)
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("a header of %d characters: %d, want %d", len(header), res.StatusCode, want)
		}
	}
}

func TestParseNamesTheLine(t *testing.T) {
	if _, err := Load("testdata/example.hcl"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ src, want string }{
		"syntax":        {"rule \"a\" {\n  text = \"x\n}\n", "s.hcl:2"},
		"empty":         {"", "s.hcl: the script has no rule"},
		"nothing":       {"rule \"a\" {\n}\n", "s.hcl:1: rule \"a\": it answers nothing"},
		"unknown":       {"rule \"a\" {\n  txt = \"x\"\n}\n", "s.hcl:2: Unsupported argument"},
		"regex":         {"rule \"a\" {\n  text = \"x\"\n  when {\n    user_matches = \"(\"\n  }\n}\n", "user_matches"},
		"no group":      {"rule \"a\" {\n  text = \"${user.x}\"\n}\n", "s.hcl:2: rule \"a\": user.x must be a named group"},
		"no variable":   {"rule \"a\" {\n  text = foo\n}\n", "s.hcl:2: rule \"a\": there is no variable \"foo\""},
		"no choice":     {"rule \"a\" {\n  text = choices[0]\n}\n", "s.hcl:2: rule \"a\": there is no variable \"choices\""},
		"half a choice": {"rule \"a\" {\n  text = \"x\"\n  when {\n    choice = \"files_read\"\n  }\n}\n", "choice = \"files_read\" is no tool with its argument"},
		"duration":      {"rule \"a\" {\n  text = \"x\"\n  delay = \"soon\"\n}\n", "delay = \"soon\""},
		"status":        {"rule \"a\" {\n  error {\n    status = 200\n  }\n}\n", "error status 200"},
		"no arguments":  {"rule \"a\" {\n  call \"b\" {\n  }\n}\n", "s.hcl:2: call \"b\": give either"},
		"two arguments": {"rule \"a\" {\n  call \"b\" {\n    arguments = {}\n    raw_arguments = \"\"\n  }\n}\n", "give either"},
	} {
		_, err := Parse([]byte(tc.src), "s.hcl")
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestRunStops(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- example(t).Run(ctx, ln) }()
	res, err := http.Get("http://" + ln.Addr().String() + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestKeyFromFile(t *testing.T) {
	path := t.TempDir() + "/key"
	if err := os.WriteFile(path, []byte("sk-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := KeyFromFile(path)
	if err != nil || !k.Equal("sk-0123456789") {
		t.Error(err)
	}
	if _, err := KeyFromFile(path + "x"); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Error(err)
	}
}

// However many requests come, one whose answer goes on is remembered, and after its end
// for as long as others that ended then.
func TestWhatGoesOnIsRemembered(t *testing.T) {
	p := example(t)
	has := func() bool {
		return slices.ContainsFunc(p.Received(), func(r Received) bool { return r.Rule == "long" })
	}
	short := func(n int) {
		for range n {
			p.remember(&Received{Rule: "short"})()
		}
	}
	ended := p.remember(&Received{Rule: "long"})
	short(2 * maxReceived)
	if n := len(p.Received()); !has() || n != maxReceived {
		t.Errorf("it goes on, and is forgotten: %d are remembered", n)
	}
	ended()
	short(maxReceived / 2)
	if !has() {
		t.Error("it is forgotten before those that ended earlier")
	}
	short(maxReceived)
	if has() {
		t.Error("it is never forgotten")
	}
}

package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// stream writes one answer, whole or in pieces.
type stream struct {
	w    http.ResponseWriter
	ctx  context.Context
	req  request
	rule *rule
	text string
	call []toolCall
	used used
	id   string
	sent int
}

func newStream(w http.ResponseWriter, ctx context.Context, req request, r *rule, a answer, bytesIn int) *stream {
	s := &stream{w: w, ctx: ctx, req: req, rule: r, text: a.text, id: "chatcmpl-" + callID()}
	out := len(a.text)
	for i, c := range a.calls {
		s.call = append(s.call, toolCall{Index: &i, ID: callID(), Type: "function", Function: functionCall{c.alias, c.arguments}})
		out += len(c.alias) + len(c.arguments)
	}
	s.used = used{PromptTokens: int64(bytesIn/4 + 1), CompletionTokens: int64(out/4 + 1)}
	if r.Usage != nil {
		s.used = used{PromptTokens: r.Usage.Input, CompletionTokens: r.Usage.Output}
	}
	s.used.TotalTokens = s.used.PromptTokens + s.used.CompletionTokens
	return s
}

func (s *stream) finish() *string {
	reason := "stop"
	switch {
	case s.rule.Length:
		reason = "length"
	case len(s.call) > 0:
		reason = "tool_calls"
	}
	return &reason
}

func (s *stream) completion(object string, c ...choice) completion {
	if c == nil {
		c = []choice{}
	}
	return completion{ID: s.id, Object: object, Created: time.Now().Unix(), Model: s.req.Model, Choices: c}
}

// whole answers a request that did not ask for a stream.
func (s *stream) whole() {
	m := &reply{Role: "assistant", ToolCalls: s.call}
	for i := range m.ToolCalls {
		m.ToolCalls[i].Index = nil
	}
	if s.text != "" {
		m.Content = &s.text
	}
	c := s.completion("chat.completion", choice{Message: m, FinishReason: s.finish()})
	c.Usage = &s.used
	s.w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(s.w).Encode(c) //nolint:errcheck // the client went
}

// stream sends server-sent events: text in pieces, then each call in two pieces
// of its arguments, then the end, then the usage if it was asked for.
func (s *stream) stream() {
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-store")
	empty := ""
	if !s.delta(&reply{Role: "assistant", Content: &empty}) {
		return
	}
	for _, piece := range pieces(s.text, s.rule.ChunkRunes) {
		if !s.paced(&reply{Content: &piece}) {
			return
		}
	}
	for _, c := range s.call {
		half := len(c.Function.Arguments) / 2
		first, second := c, toolCall{Index: c.Index}
		first.Function.Arguments, second.Function.Arguments = c.Function.Arguments[:half], c.Function.Arguments[half:]
		if !s.paced(&reply{ToolCalls: []toolCall{first}}) || !s.paced(&reply{ToolCalls: []toolCall{second}}) {
			return
		}
	}
	s.event(s.completion("chat.completion.chunk", choice{Delta: &reply{}, FinishReason: s.finish()}))
	if s.req.StreamOptions.IncludeUsage {
		c := s.completion("chat.completion.chunk")
		c.Usage = &s.used
		s.event(c)
	}
	fmt.Fprint(s.w, "data: [DONE]\n\n")
}

// paced sends a piece, the rule's delay after the one before, or breaks the connection where the
// rule says so.
func (s *stream) paced(d *reply) bool {
	if s.rule.CutAfter != nil && s.sent >= *s.rule.CutAfter {
		panic(http.ErrAbortHandler) // closes the connection without an end
	}
	s.sent++
	if s.sent > 1 && !wait(s.ctx, s.rule.chunkDelay) {
		return false
	}
	return s.delta(d)
}

func (s *stream) delta(d *reply) bool {
	return s.event(s.completion("chat.completion.chunk", choice{Delta: d}))
}

func (s *stream) event(c completion) bool {
	b, err := json.Marshal(c)
	if err != nil {
		return false
	}
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", b); err != nil {
		return false
	}
	return http.NewResponseController(s.w).Flush() == nil
}

// pieces cuts text into runs of n runes.
func pieces(text string, n int) (out []string) {
	r := []rune(text)
	for len(r) > n {
		out = append(out, string(r[:n]))
		r = r[n:]
	}
	if len(r) > 0 {
		out = append(out, string(r))
	}
	return out
}

package scripted

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// stream writes one answer, whole or in pieces, in the format of its pen.
type stream struct {
	w     http.ResponseWriter
	ctx   context.Context
	asked *asked
	rule  *rule
	all   string
	calls []*calling
	used  usage
	id    string
	sent  int
}

func newStream(w http.ResponseWriter, ctx context.Context, in *asked, r *rule, a answer, bytesIn int) *stream {
	s := &stream{w: w, ctx: ctx, asked: in, rule: r, all: a.text, id: randomHex()}
	out := len(a.text)
	for _, c := range a.calls {
		s.calls = append(s.calls, &calling{answerCall: c, id: "call_" + randomHex()})
		out += len(c.alias) + len(c.arguments)
	}
	s.used = usage{Input: int64(bytesIn/4 + 1), Output: int64(out/4 + 1)}
	if r.Usage != nil {
		s.used = *r.Usage
	}
	return s
}

// respond with the whole, or with pieces.
func (s *stream) respond(p pen) {
	if s.asked.streamed {
		s.pieces(p)
		return
	}
	s.w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(s.w).Encode(p.whole()) // the client went
}

// pieces are server-sent events: text, then each call in two halves of its
// arguments, then the end.
func (s *stream) pieces(p pen) {
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-store")
	if !p.begin() {
		return
	}
	for _, piece := range cut(s.all, s.rule.ChunkRunes) {
		if !s.pace() || !p.text(piece) {
			return
		}
	}
	for i, c := range s.calls {
		half := len(c.arguments) / 2
		if !s.pace() || !p.call(i, c, c.arguments[:half], true) || !s.pace() || !p.call(i, c, c.arguments[half:], false) {
			return
		}
	}
	if !s.fails() {
		p.end()
	}
}

// pace waits the rule's time before a piece.
func (s *stream) pace() bool {
	if s.fails() {
		return false
	}
	s.sent++
	return s.sent == 1 || wait(s.ctx, s.rule.chunkDelay)
}

// fails where the rule says so: the connection breaks, the stream ends as if it
// were whole, or nothing comes any more.
func (s *stream) fails() bool {
	at := func(n *int) bool { return n != nil && s.sent >= *n }
	switch {
	case at(s.rule.CutAfter):
		panic(http.ErrAbortHandler) // closes the connection without an end
	case at(s.rule.EndAfter):
		return true
	case at(s.rule.StallAfter):
		<-s.ctx.Done()
		return true
	}
	return false
}

// data writes one event.
func (s *stream) data(v any) bool {
	b, err := json.Marshal(v)
	return err == nil && s.line("data: "+string(b)+"\n\n")
}

func (s *stream) line(text string) bool {
	if _, err := io.WriteString(s.w, text); err != nil {
		return false
	}
	return http.NewResponseController(s.w).Flush() == nil
}

// cut text into runs of n runes.
func cut(text string, n int) (out []string) {
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

package mcp

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"bivouac/edge/protocol"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// One session calls one tool once: a second call is refused before a byte of it is
// written, and what calls nothing goes on. INV-5.
func TestLocalCallsOnce(t *testing.T) {
	theirs, in := io.Pipe()
	defer theirs.Close()
	got := make(chan string, 8)
	go func() {
		defer close(got)
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			got <- lines.Text()
		}
	}()
	w := &wire{local: &program{in: in, lines: make(chan []byte)}}
	send := func(method, body string) error {
		return w.send(t.Context(), &jsonrpc.Request{Method: method, Params: json.RawMessage(`{}`)}, []byte(body))
	}
	if err := send("ping", "a ping"); err != nil || w.called || w.arrived {
		t.Errorf("a ping: %v", err)
	}
	if err := send(methodCall, "the call"); err != nil || !w.called || !w.arrived {
		t.Errorf("the first call: %v", err)
	}
	if err := send(methodCall, "the second"); protocol.CodeOf(err) != protocol.CodeConflict || !strings.Contains(err.Error(), "calls once") {
		t.Errorf("the second call: %v", err)
	}
	if err := send("ping", "one more"); err != nil {
		t.Errorf("a ping after it: %v", err)
	}
	in.Close()
	var all []string
	for line := range got {
		all = append(all, line)
	}
	if s := strings.Join(all, ", "); s != "a ping, the call, one more" {
		t.Errorf("written: %s", s)
	}
}

// A line longer than an answer may be ends its server, whole or in pieces, also before
// its end came; one of just that length is an answer.
func TestLocalLinesAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		pieces []string
		lines  int
		lie    bool
	}{
		"just":                 {[]string{"0123456789\n"}, 1, false},
		"just, in pieces":      {[]string{"01234", "56789", "\n0123456789\n"}, 2, false},
		"too long":             {[]string{"0123456789x\n"}, 0, true},
		"too long, in pieces":  {[]string{"01234", "56789", "x\n"}, 0, true},
		"too long, and no end": {[]string{"01234", "56789x"}, 0, true},
		"too long, after one":  {[]string{"0123\n0123456789x\n"}, 1, true},
	} {
		p := &program{lines: make(chan []byte, 4), done: make(chan struct{})}
		w := &lineWriter{p: p, most: 10}
		var err error
		for _, piece := range tc.pieces {
			if _, err = w.Write([]byte(piece)); err != nil {
				break
			}
		}
		if (err != nil) != tc.lie || (p.lie != nil) != tc.lie || len(p.lines) != tc.lines {
			t.Errorf("%s: %v, %v, %d lines", name, err, p.lie, len(p.lines))
		}
		if tc.lie && (!strings.Contains(p.ended().Error(), "more than 10 bytes") || !strings.Contains(p.ended().Error(), "max_answer_kib")) {
			t.Errorf("%s: %v", name, p.ended())
		}
	}
}

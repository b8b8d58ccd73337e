package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// A question that is not answered ends with the context, and no line is lost.
func TestLineEndsWithTheContext(t *testing.T) {
	r, w := io.Pipe()
	in := newInput(r)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := in.line(ctx); protocol.CodeOf(err) != protocol.CodeCancelled {
		t.Errorf("interrupted: %v", err)
	}
	go func() {
		io.WriteString(w, "one\r\n\ntwo") // a pipe that is read
		w.Close()
	}()
	for _, want := range []string{"one", "", "two"} {
		if got, err := in.line(t.Context()); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	for range 2 {
		if _, err := in.line(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
	}
}

// What is quick says nothing, what takes long says so now and then, and --json
// nothing at all.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		for _, quiet := range []bool{false, true} {
			out.Reset()
			p := (&app{err: &out, json: quiet}).progress()
			for i := range 121 { // a minute, and no terminal
				p.say("%d of 120", i)
				time.Sleep(500 * time.Millisecond)
			}
			p.done()
			if lines := strings.Count(out.String(), "\n"); quiet && lines != 0 || !quiet && (lines != 12 || !strings.HasPrefix(out.String(), "10 of 120\n")) {
				t.Errorf("quiet %v: %d lines:\n%s", quiet, lines, out.String())
			}
		}
		out.Reset()
		tty := &progress{w: &out, tty: true, every: 200 * time.Millisecond, last: time.Now()}
		tty.say("at once")
		time.Sleep(time.Second)
		tty.say("half")
		tty.done()
		if out.String() != "\r\x1b[Khalf\r\x1b[K" {
			t.Errorf("on a terminal: %q", out.String())
		}
	})
}

func TestCountedIsRewound(t *testing.T) {
	var last int64
	c := &counted{ReadSeeker: strings.NewReader("0123456789"), told: func(at int64) { last = at }}
	for range 2 {
		if n, err := io.Copy(io.Discard, c); n != 10 || err != nil || last != 10 {
			t.Errorf("read %d, told %d, %v", n, last, err)
		}
		if at, err := c.Seek(0, io.SeekStart); at != 0 || err != nil {
			t.Errorf("rewound to %d, %v", at, err)
		}
	}
	for n, want := range map[int64]string{0: "0 bytes", 9_999: "9999 bytes", 10_000: "10 kB", 12_345_678: "12 MB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}

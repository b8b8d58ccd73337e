package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// What is read as a message is one for every JSON reader: valid, one of three kinds,
// and not deeper than it may be.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"x"}`, `{"jsonrpc":"2.0","id":"a","method":"ping","params":[]}`,
		`[{"jsonrpc":"2.0"}]`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`, `{"jsonrpc":"2.0","id":1,"id":2,"result":1}`, `{"a":"\"{"}`, " \n{}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := parseMessage(src)
		if err != nil {
			var lie *violation
			if !errors.As(err, &lie) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v", err)
			}
			return
		}
		kinds := 0
		for _, is := range []bool{m.asks(), m.notifies(), m.method == "" && m.id != nil && (m.result != nil) != (m.fault != nil)} {
			if is {
				kinds++
			}
		}
		if m.method == "" && m.id == nil {
			kinds++ // an answer to nothing, which answers no request
			if m.answers(0) || m.answers(1) {
				t.Fatal("an answer without an id answers a request")
			}
		}
		if !json.Valid(src) || kinds != 1 || len(src) > 0 && bytes.TrimSpace(src)[0] != '{' {
			t.Fatalf("%q is %+v", src, m)
		}
		var again map[string]json.RawMessage
		if err := json.Unmarshal(src, &again); err != nil {
			t.Fatal(err)
		}
	})
}

// A stream says the same however it is cut into pieces, and never more than it may.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\n", "data: a\r\rdata: b\r\n\r\n", "event: x\ndata: a\n\n", "id: 1\n\n: c\n\ndata:a\ndata: b\n\n", "data", "data: half\n", "\xef\xbb\xbfdata: x\n\n", "data: \n\n"} {
		f.Add([]byte(s))
	}
	const most = 1 << 12
	read := func(in io.Reader) (out []string, err error) {
		e := readEvents(boundedReader(in, most), most)
		for {
			data, err := e.next()
			if err != nil {
				return out, err
			}
			out = append(out, string(data))
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		whole, e1 := read(bytes.NewReader(src))
		pieces, e2 := read(iotest.OneByteReader(bytes.NewReader(src)))
		if strings.Join(whole, "\x00") != strings.Join(pieces, "\x00") || e1 == nil || e2 == nil || e1.Error() != e2.Error() {
			t.Fatalf("%q: %q %v, in pieces %q %v", src, whole, e1, pieces, e2)
		}
		total := 0
		for _, s := range whole {
			total += len(s)
		}
		if total > min(len(src), most) || len(whole) > maxEvents {
			t.Fatalf("%d bytes in %d events out of %d", total, len(whole), len(src))
		}
	})
}

// Streams as the standard reads them.
func TestEvents(t *testing.T) {
	for src, want := range map[string]string{
		"data: a\n\n": "a", "data:a\ndata: b\n\n": "a\nb", "data: a\r\rdata: b\r\n\r\n": "a|b", ": c\n\nid: 1\n\ndata: a\n\n": "a",
		"event: x\ndata: a\n\ndata: b\n\n": "b", "event: message\ndata: a\n\n": "a", "data: a\n": "", "data: a": "", "data\n\n": "", "retry: 5\ndata:  a\n\n": " a",
	} {
		e := readEvents(strings.NewReader(src), 1<<10)
		var got []string
		for {
			data, err := e.next()
			if err != nil {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%q: %v", src, err)
				}
				break
			}
			got = append(got, string(data))
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

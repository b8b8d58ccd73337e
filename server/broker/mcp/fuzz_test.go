package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"bivouac/edge/protocol/canonical"
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

// answers is a server without a network: a result for each method.
type answers map[string][]byte

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m, err := parseMessage(body)
	if err != nil {
		return nil, err
	}
	out := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.id, a[m.method])
	if m.method == methodCall {
		a["called"] = append(a["called"], 'x')
	}
	return &http.Response{StatusCode: 200, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(out))}, nil
}

// Whatever the results are, nothing falls over, nothing is called twice, and what
// comes out is bounded text.
func FuzzResults(f *testing.F) {
	f.Add([]byte(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`), []byte(listOf(searchTool)), []byte(`{"content":[{"type":"text","text":"a"}]}`))
	f.Add([]byte(`{"protocolVersion":"2025-11-25","capabilities":null}`), []byte(`{"tools":[null]}`), []byte(`{"content":[null],"inputRequests":{"a":null}}`))
	f.Add([]byte(`null`), []byte(`{"tools":[{"name":"search","inputSchema":{}}],"nextCursor":"x","ttlMs":1e300}`), []byte(`{"content":{"type":"image","data":"AA=="},"structuredContent":[1e400,"\ud800"]}`))
	at := &url.URL{Scheme: "https", Host: "mcp.example", Path: "/mcp"}
	f.Fuzz(func(t *testing.T, hello, list, call []byte) {
		a := answers{methodDiscover: hello, methodInitialize: hello, methodList: list, methodCall: call}
		e := New(Config{Name: "x", URL: at, Bounds: DefaultBounds, Client: &http.Client{Transport: a}})
		s, err := e.Open(t.Context(), Access{})
		if err != nil {
			return
		}
		defer s.Close(t.Context())
		for _, o := range s.Offers() {
			if (o.Problem == "") != canonical.IsDigest(o.Digest) || o.Problem == "" && canonical.Digest([]byte(o.Schema)) != o.Digest {
				t.Fatalf("%+v", o)
			}
			if o.Problem != "" {
				continue
			}
			answer, err := s.Call(t.Context(), Call{Tool: o.Name, Digest: o.Digest, Arguments: []byte(`{}`), MaxBytes: 64})
			if err == nil && (len(answer.Body) > 64 || !utf8.Valid(answer.Body)) {
				t.Fatalf("%+v", answer)
			}
			if len(a["called"]) != 1 {
				t.Fatalf("called %d times", len(a["called"]))
			}
			return
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

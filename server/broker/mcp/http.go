package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/consul"
)

// Headers of streamable HTTP. Method and name go out in every version, so that
// paths can tell one tool from another.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
)

var versionForm = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)

const (
	replyTimeout = 5 * time.Second // of a refusal
	endTimeout   = 2 * time.Second // of the word that a session is over
	maxError     = 64 << 10        // of an answer that says no
)

// wireReply is an answer to a server's request.
type wireReply struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Fault   *wireFault      `json:"error,omitempty"`
}

func (w *wire) headers(h http.Header, r *jsonrpc.Request) {
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set("Accept-Encoding", "identity") // what cannot be read cannot be redacted
	h.Set("User-Agent", "bivouac-broker")
	if w.session != "" {
		h.Set(headerSession, w.session)
	}
	version := w.version
	if r != nil {
		h.Set(headerMethod, r.Method)
		var p struct {
			Name string         `json:"name"`
			Meta map[string]any `json:"_meta"`
		}
		if json.Unmarshal(r.Params, &p) == nil {
			if r.Method == methodCall {
				h.Set(headerName, p.Name)
			}
			if v, ok := p.Meta[sdk.MetaKeyProtocolVersion].(string); ok {
				version = v
			}
		}
	}
	if version != "" {
		h.Set(headerVersion, version)
	}
}

// shown is a request as paths see it: without body and credential.
func (w *wire) shown(req *http.Request) *consul.Request {
	out := &consul.Request{Method: req.Method, Path: cmp.Or(req.URL.EscapedPath(), "/"), Header: req.Header.Clone(), Sealed: w.e.sealed(w.access)}
	out.Header.Set("Host", req.URL.Host)
	return out
}

// accept judges an answer's head.
func (w *wire) accept(res *http.Response, r *jsonrpc.Request) error {
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return violated("it answers in an encoding that was not asked for and is not read")
	}
	if res.StatusCode < 200 || res.StatusCode >= 300 {
		return w.no(res, r)
	}
	if id := res.Header.Get(headerSession); id != "" && r.Method != methodInitialize && w.session != "" && id != w.session {
		return violated("it changed the session id in the middle of a session")
	}
	return nil
}

// no reads an answer whose status says no, for the words of its error.
func (w *wire) no(res *http.Response, r *jsonrpc.Request) error {
	s := &statusError{status: res.StatusCode, retry: retryAfter(res.Header)}
	if kind(res) != "application/json" {
		return s
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	if err != nil {
		return s
	}
	if m, err := parseMessage(body); err == nil && m.fault != nil {
		s.text = w.words(m.fault.Message)
	}
	return s
}

func kind(res *http.Response) string {
	k, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return k
}

// answer reads the one answer to a request, out of a document or a stream.
func (w *wire) answer(ctx context.Context, res *http.Response, id int64) (message, error) {
	most := w.e.cfg.Bounds.MaxAnswer
	in := boundedReader(res.Body, most)
	switch kind(res) {
	case "application/json":
		body, err := io.ReadAll(in)
		if err != nil {
			return message{}, broken(err)
		}
		m, err := parseMessage(body)
		if err == nil && !m.answers(id) {
			err = violated("it answered another request")
		}
		return m, err
	case "text/event-stream":
		return w.stream(ctx, readEvents(in, most), id)
	}
	return message{}, violated("it answers with the content type %.60q, which is not MCP's", w.words(kind(res)))
}

// stream reads past what a server tells, refuses what it asks, and ends with the
// answer. What stands behind the answer is not read.
func (w *wire) stream(ctx context.Context, e *events, id int64) (message, error) {
	for {
		data, err := e.next()
		if err != nil {
			return message{}, broken(err)
		}
		m, err := parseMessage(data)
		if err != nil {
			return m, err
		}
		if done, err := w.heard(ctx, m, id); done || err != nil {
			return m, err
		}
	}
}

// heard does with a message what is to be done, and reports the answer to a request.
func (w *wire) heard(ctx context.Context, m message, id int64) (done bool, err error) {
	switch {
	case m.notifies():
		w.changed = w.changed || m.method == "notifications/tools/list_changed"
	case m.asks():
		return false, w.refused(ctx, m)
	case m.answers(id):
		return true, nil
	default:
		return false, violated("it answered another request")
	}
	return false, nil
}

// broken keeps a violation one; everything else may have been the network.
func broken(err error) error {
	var lie *violation
	if errors.As(err, &lie) {
		return lie
	}
	return &brokenError{err}
}

// end tells the server that the session is over, where paths let it. It is a
// courtesy: nobody waits long for it, and its answer changes nothing.
func (w *wire) end(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session == "" || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, w.e.cfg.URL.String(), nil)
	if err != nil {
		return
	}
	w.headers(req.Header, nil)
	req.Header.Del("Content-Type")
	if ask(w.access.MayFunc, w.shown(req)) != nil || w.e.inject(req.Header, w.access) != nil {
		return
	}
	if res, err := w.e.cfg.Client.Do(req); err == nil {
		res.Body.Close()
	}
}

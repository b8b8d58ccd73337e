package mcp

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"bivouac/consul"
	"bivouac/edge/protocol"
)

// talk is one message to a local server and what answers it: one JSON-RPC message a
// line, in both directions. Servers of before server/discover may hang when they are
// asked for it, so they are not: the handshake is initialize.
func (w *wire) talk(ctx context.Context, r *jsonrpc.Request, body []byte) (*jsonrpc.Response, error) {
	if r.Method == methodDiscover {
		return unknownMethod(r), nil
	}
	if err := ask(w.access.LeavesFunc, w.posted(r)); err != nil {
		return nil, err
	}
	if err := w.send(ctx, r, body); err != nil || !r.IsCall() {
		return nil, err
	}
	id, _ := r.ID.Raw().(int64)
	m, err := w.listen(ctx, id)
	if err != nil {
		return nil, err
	}
	if r.Method == methodInitialize && m.fault == nil {
		if err := w.begun(nil, m.result); err != nil {
			return nil, err
		}
	}
	return w.response(r, m), nil
}

// send one message. A tool is called once, and only while the server did not say since
// its list that its tools changed.
func (w *wire) send(ctx context.Context, r *jsonrpc.Request, body []byte) error {
	call := r.Method == methodCall
	if call {
		if w.called {
			return protocol.Errorf(protocol.CodeConflict, "a session of MCP calls once")
		}
		w.called = true
		if err := w.heed(ctx); err != nil {
			return err
		}
	}
	n, err := w.local.write(ctx, body)
	if call && n > 0 {
		w.arrived = true
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if _, err := w.listen(ctx, -1); err != nil { // why it takes nothing any more
		return err
	}
	return &brokenError{err}
}

// heed what the server said by itself.
func (w *wire) heed(ctx context.Context) error {
	for {
		select {
		case line, ok := <-w.local.lines:
			if !ok {
				return w.local.ended()
			}
			m, err := parseMessage(line)
			if err == nil {
				_, err = w.heard(ctx, m, -1)
			}
			if err != nil {
				return err
			}
		default:
			if w.changed {
				return violated("it changed its tools after it had listed them")
			}
			return nil
		}
	}
}

// listen for the answer to one request; no id: until it ends.
func (w *wire) listen(ctx context.Context, id int64) (message, error) {
	for range maxEvents {
		line, err := w.local.next(ctx)
		if err != nil {
			return message{}, err
		}
		m, err := parseMessage(line)
		if err != nil {
			return m, err
		}
		if done, err := w.heard(ctx, m, id); done || err != nil {
			return m, err
		}
	}
	return message{}, violated("it sent more than %d messages for one request", maxEvents)
}

// posted is a message as paths see it: as the request that it is over HTTP.
func (w *wire) posted(r *jsonrpc.Request) *consul.Request {
	h := http.Header{}
	w.headers(h, r)
	return &consul.Request{Method: http.MethodPost, Path: "/", Header: h}
}

// reply to what a local server asked.
func (w *wire) reply(ctx context.Context, body []byte) {
	if ask(w.access.MayFunc, &consul.Request{Method: http.MethodPost, Path: "/", Header: http.Header{}}) == nil {
		_, _ = w.local.write(ctx, body) // whether the server hears it is the server's business
	}
}

func unknownMethod(r *jsonrpc.Request) *jsonrpc.Response {
	return &jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "not found"}}
}

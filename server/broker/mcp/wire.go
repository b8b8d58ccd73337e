package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Methods that are ever asked for. Whatever the SDK would send beside them does not
// leave: a session that ends says nothing more.
const (
	methodDiscover    = "server/discover"
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodList        = "tools/list"
	methodCall        = "tools/call"
)

// wire is one session's transport: each message is one POST, whose answer is read
// to its end before Write returns. It hands the SDK nothing but answers to the SDK's
// own requests, in their form, so no server can make it queue, repeat or ask.
type wire struct {
	e        *Endpoint
	access   Access
	redactor *secret.Redactor
	local    *program // nil: the server is asked over HTTP

	incoming chan *jsonrpc.Response
	closed   chan struct{}
	once     sync.Once

	mu      sync.Mutex      // guards below; requests follow each other
	session string          // Mcp-Session-Id
	version string          // that was agreed on
	changed bool            // the server says that its tools changed
	asked   int             // requests of the server
	last    json.RawMessage // result of the last answered request, or
	fault   *jsonrpc.Error  // its error
	failure error           // of the last request
	called  bool            // a tools/call was on its way: there is no second one
	arrived bool            // it may have arrived
}

var _ sdk.Connection = (*wire)(nil)

func newWire(e *Endpoint, a Access) *wire {
	return &wire{e: e, access: a, redactor: secret.NewRedactor(append([]secret.Value{a.Credential}, a.Before...)...),
		incoming: make(chan *jsonrpc.Response, 1), closed: make(chan struct{})}
}

// Connect makes the wire its own transport.
func (w *wire) Connect(context.Context) (sdk.Connection, error) { return w, nil }

// SessionID is the transport's own business.
func (w *wire) SessionID() string { return "" }

// Read hands out answers.
func (w *wire) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-w.incoming:
		return m, nil
	case <-w.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends reading. What is to be said to the server is said before.
func (w *wire) Close() error {
	w.once.Do(func() {
		close(w.closed)
		if w.local != nil {
			w.local.close()
		}
	})
	return nil
}

// Write sends one message and reads what answers it.
func (w *wire) Write(ctx context.Context, m jsonrpc.Message) error {
	r, ok := m.(*jsonrpc.Request)
	if !ok || !sends(r.Method) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure, w.last, w.fault = nil, nil, nil
	out, err := w.exchange(ctx, r)
	if err != nil {
		w.failure = err
		return err
	}
	if out != nil {
		w.last = out.Result
		w.fault, _ = out.Error.(*jsonrpc.Error)
		select {
		case w.incoming <- out:
		case <-w.closed:
		}
	}
	return nil
}

func sends(method string) bool {
	switch method {
	case methodDiscover, methodInitialize, methodInitialized, methodList, methodCall:
		return true
	}
	return false
}

// exchange is one request and its answer; a notification has none.
func (w *wire) exchange(ctx context.Context, r *jsonrpc.Request) (*jsonrpc.Response, error) {
	body, err := jsonrpc.EncodeMessage(r)
	if err != nil {
		return nil, err
	}
	if w.local != nil {
		return w.talk(ctx, r, body)
	}
	res, err := w.post(ctx, body, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := w.accept(res, r); err != nil {
		return w.fallBack(r, err)
	}
	if !r.IsCall() {
		return nil, nil
	}
	id, _ := r.ID.Raw().(int64)
	m, err := w.answer(ctx, res, id)
	if err != nil {
		return w.fallBack(r, err)
	}
	if r.Method == methodInitialize && m.fault == nil {
		if err := w.begun(res.Header, m.result); err != nil {
			return nil, err
		}
	}
	return w.response(r, m), nil
}

// response is an answer as the SDK knows it.
func (w *wire) response(r *jsonrpc.Request, m message) *jsonrpc.Response {
	out := &jsonrpc.Response{ID: r.ID, Result: m.result}
	if m.fault != nil {
		out.Error = &jsonrpc.Error{Code: m.fault.Code, Message: w.words(m.fault.Message), Data: m.fault.Data}
	}
	return out
}

// fallBack makes an older server's no to server/discover an answer, in whatever form
// it comes, after which the SDK shakes hands the older way. Who is not let in at all
// is told so.
func (w *wire) fallBack(r *jsonrpc.Request, err error) (*jsonrpc.Response, error) {
	var s *statusError
	var lie *violation
	if r.Method != methodDiscover || !errors.As(err, &s) && !errors.As(err, &lie) {
		return nil, err
	}
	switch {
	case s == nil:
	case s.status < 400, s.status == http.StatusUnauthorized, s.status == http.StatusForbidden, s.status == http.StatusTooManyRequests, s.status > http.StatusNotImplemented:
		return nil, err
	}
	return unknownMethod(r), nil
}

// begun keeps what the handshake agreed on.
func (w *wire) begun(h http.Header, result json.RawMessage) error {
	var agreed struct {
		Version string `json:"protocolVersion"`
	}
	if json.Unmarshal(result, &agreed) != nil || !versionForm.MatchString(agreed.Version) {
		return violated("it answers initialize without a protocol version")
	}
	w.version = agreed.Version
	id := h.Get(headerSession)
	if len(id) > 1024 || strings.ContainsFunc(id, func(r rune) bool { return r < '!' || r > '~' }) {
		return violated("its session id has characters that no id may have")
	}
	w.session = id
	return nil
}

// post sends one message to the exact endpoint. Paths are asked about the very
// request, the credential is the last to be added, and nothing can send it again.
func (w *wire) post(ctx context.Context, body []byte, r *jsonrpc.Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.e.cfg.URL.String(), strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	w.headers(req.Header, r)
	may := w.access.LeavesFunc
	if r == nil {
		may = w.access.MayFunc
	}
	if err := ask(may, w.shown(req)); err != nil {
		return nil, err
	}
	if err := w.e.inject(req.Header, w.access); err != nil {
		return nil, err
	}
	call := r != nil && r.Method == methodCall
	if call && w.called {
		return nil, protocol.Errorf(protocol.CodeConflict, "a session of MCP calls once")
	}
	if w.called = w.called || call; call {
		req.GetBody = nil // neither a connection that closes nor a stream that is refused repeats it
	}
	var connected atomic.Bool
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}))
	res, err := w.e.cfg.Client.Do(req)
	if call && (connected.Load() || err == nil) {
		w.arrived = true
	}
	if err != nil && connected.Load() {
		return nil, &brokenError{err}
	}
	return res, err
}

// refuseFirst bounds what a server may ask in one session.
const refuseFirst = 8

// refused is what a server gets that asks something of a client.
func (w *wire) refused(ctx context.Context, m message) error {
	if w.asked++; w.asked > refuseFirst {
		return violated("it asked for more than %d things that were refused", refuseFirst)
	}
	reply := wireReply{Version: "2.0", ID: m.id}
	if m.method == "ping" {
		reply.Result = json.RawMessage("{}")
	} else {
		reply.Fault = &wireFault{Code: jsonrpc.CodeMethodNotFound, Message: "this client offers no sampling, elicitation, roots or anything else to servers"}
	}
	body, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if w.local != nil {
		w.reply(ctx, body)
		return nil
	}
	if res, err := w.post(ctx, body, nil); err == nil {
		res.Body.Close()
	}
	return nil // whether the server hears it is the server's business
}

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"bivouac/edge/link/linktest"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/scripted"
	"bivouac/server/broker/secret"
)

// Secrets of every world: what the broker injects and nobody else may see.
const (
	ModelKey = "sk-harness-model-0123456789"
	ToolKey  = "tk-harness/tool-9876543210+x"
	OtherKey = "tk-harness/other-1357924680+y"
)

// Names of hosts behind the broker, their addresses, and of the credentials.
const (
	providerHost, providerIP = "provider.example", "10.9.0.1"
	toolsHost, toolsIP       = "tools.example", "10.9.0.2"

	modelCredential = "model-key"
	// IdempotencyHeader that Tools remembers.
	IdempotencyHeader = "Idempotency-Key"
	// ToolCredential is bound to the destination "tools".
	ToolCredential = "tools-token"
	// OtherCredential is bound to it too, with OtherKey.
	OtherCredential = "tools-other"
)

// Tools is the upstream of http tools: it wants ToolKey or OtherKey and answers every
// request with what Answer makes of it.
type Tools struct {
	mu     sync.Mutex // guards the fields below
	answer http.HandlerFunc
	got    []ToolRequest
}

// ToolRequest is one request as it came.
type ToolRequest struct {
	At     time.Time
	Method string
	URI    string
	Body   string
	// Credential that it carried, by name.
	Credential string
	// Key of idempotency, as the broker sent it.
	Key string
}

// Answers decides what comes back; nil: the request's path as JSON.
func (u *Tools) Answers(h http.HandlerFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = h
}

// Requests that carried the right credential, oldest first.
func (u *Tools) Requests() []ToolRequest {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]ToolRequest(nil), u.got...)
}

func (u *Tools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := map[string]string{"Bearer " + ToolKey: ToolCredential, "Bearer " + OtherKey: OtherCredential}[r.Header.Get("Authorization")]
	if name == "" {
		http.Error(w, "no such key", http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	u.mu.Lock()
	u.got = append(u.got, ToolRequest{At: time.Now(), Method: r.Method, URI: r.URL.RequestURI(), Body: string(body), Credential: name,
		Key: r.Header.Get(IdempotencyHeader)})
	answer := u.answer
	u.mu.Unlock()
	if answer != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"path": r.URL.Path, "authorised_as": r.Header.Get("Authorization")})
}

// startUpstreams serves the provider and the tool API.
func (w *World) startUpstreams() {
	w.t.Helper()
	script, err := scripted.Parse([]byte(w.opt.Script), "script.hcl")
	w.must(err)
	key, err := secret.New(ModelKey)
	w.must(err)
	w.Provider = scripted.New(scripted.Config{Script: script, Key: key})
	w.Tools = &Tools{}
	model, tools := linktest.NewListener(), linktest.NewListener()
	w.egress[providerIP], w.egress[toolsIP] = model, tools
	server := &http.Server{Handler: w.Tools, ReadHeaderTimeout: 10 * time.Second}
	w.upstreams = append(w.upstreams,
		run(func(ctx context.Context) error { return w.Provider.Run(ctx, model) }),
		run(func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() { server.Close() })()
			if err := server.Serve(tools); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		}))
}

// outside is the internet as the broker sees it.
func (w *World) outside() egress.Network {
	names := map[string]string{providerHost: providerIP, toolsHost: toolsIP}
	return egress.Network{
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			ip, ok := names[host]
			if !ok {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return []netip.Addr{netip.MustParseAddr(ip)}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			l := w.egress[to.Addr().String()]
			if l == nil {
				return nil, errors.New("connection refused")
			}
			return l.Dial(ctx)
		},
	}
}

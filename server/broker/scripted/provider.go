package scripted

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// maxRequest bounds a request; maxReceived what is remembered of them.
const (
	maxRequest  = 16 << 20
	maxReceived = 256
)

// Config of a Provider.
type Config struct {
	Script *Script
	// Key that callers must present; zero asks for none.
	Key secret.Value
	Log *slog.Logger
}

// Received is one request as it came, for tests: what really left the broker.
type Received struct {
	At            time.Time // when it was there
	EndedAt       time.Time // when its answer ended, whole or broken off; zero while it goes on
	Authorization bool      // a bearer was presented
	Body          json.RawMessage
	Rule          string // that answered; empty for none
}

// Provider answers from a script. It is an http.Handler for /v1/chat/completions
// and /v1/models.
type Provider struct {
	cfg Config
	mux *http.ServeMux

	mu       sync.Mutex // guards below
	received []*Received
}

// New makes a provider; it listens nowhere.
func New(cfg Config) *Provider {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{cfg: cfg, mux: http.NewServeMux()}
	p.mux.HandleFunc("POST /v1/chat/completions", p.complete)
	p.mux.HandleFunc("GET /v1/models", p.models)
	return p
}

// Run serves on ln until ctx ends.
func (p *Provider) Run(ctx context.Context, ln net.Listener) error {
	server := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		return nil
	}
	return err
}

// ServeHTTP checks the key first.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.cfg.Key.IsZero() {
		bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || !p.cfg.Key.Equal(bearer) {
			refuse(w, http.StatusUnauthorized, "invalid_api_key", "the key is missing or wrong")
			return
		}
	}
	p.mux.ServeHTTP(w, r)
}

// Received are the newest requests, oldest first.
func (p *Provider) Received() []Received {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Received, len(p.received))
	for i, r := range p.received {
		out[i] = *r
	}
	return out
}

// remember keeps a request; the returned function notes the end of its answer.
func (p *Provider) remember(r *Received) (ended func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.received) >= maxReceived {
		p.received = p.received[1:]
	}
	r.At = time.Now()
	p.received = append(p.received, r)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.EndedAt = time.Now()
	}
}

func (p *Provider) models(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"object":"list","data":[{"id":"scripted","object":"model","owned_by":"bivouac"}]}`+"\n") //nolint:errcheck // the client went
}

func (p *Provider) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	var req request
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil || len(req.Messages) == 0 {
		refuse(w, http.StatusBadRequest, "invalid_request_error", "the request is no chat completion")
		return
	}
	c := req.conversation()
	rule, vars := p.cfg.Script.match(c)
	got := &Received{Authorization: r.Header.Get("Authorization") != "", Body: body}
	if rule != nil {
		got.Rule = rule.Name
	}
	defer p.remember(got)()
	p.cfg.Log.Debug("scripted answer", "rule", got.Rule, "results", len(c.results))
	if rule == nil {
		refuse(w, http.StatusUnprocessableEntity, "no_rule",
			"no rule of "+p.cfg.Script.Name+" matches: "+c.describe()+"; add a rule for it")
		return
	}
	a, err := rule.answer(vars)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, "bad_rule", "rule "+rule.Name+" cannot be filled in: "+err.Error())
		return
	}
	if !wait(r.Context(), rule.delay) {
		return
	}
	p.respond(w, r, req, rule, a, body)
}

func (p *Provider) respond(w http.ResponseWriter, r *http.Request, req request, rule *rule, a answer, body []byte) {
	switch {
	case rule.Error != nil:
		if s := rule.Error.retryAfter; s > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(int64((s+time.Second-1)/time.Second), 10))
		}
		refuse(w, rule.Error.Status, rule.Error.Code, rule.Error.Message)
	case rule.Garbage:
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"half a \n\n<html>bad gateway</html>\n\n") //nolint:errcheck // the client went
	default:
		s := newStream(w, r.Context(), req, rule, a, len(body))
		if req.Stream {
			s.stream()
		} else {
			s.whole()
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	var e wireError
	e.Error.Message, e.Error.Type, e.Error.Code = text, "error", code
	if text == "" {
		e.Error.Message = http.StatusText(status)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(e) //nolint:errcheck // the client went
}

func callID() string {
	var b [9]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return "call_" + hex.EncodeToString(b[:])
}

// KeyFromFile reads the key that callers must present.
func KeyFromFile(path string) (secret.Value, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeInvalidArgument, "the key file cannot be read: %w", err)
	}
	return secret.New(strings.TrimSpace(string(b)))
}

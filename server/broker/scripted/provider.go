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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// maxRequest bounds a request; maxReceived what is remembered of them, beside those
// whose answer goes on.
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
	Authorization bool      // a key was presented
	KeyHeader     string    // in which header
	Path          string
	Body          json.RawMessage
	Rule          string // that answered; empty for none
}

// Provider answers from a script. It is an http.Handler for
// /v1/chat/completions, /v1/responses, /v1/messages and /v1/models.
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
	for pattern, d := range dialects {
		p.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { p.complete(w, r, d) })
	}
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

// ServeHTTP checks the key first. Either header will do, but not both: which one a
// client means is no guess.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.cfg.Key.IsZero() {
		key, name := presented(r)
		if name == "" || !p.cfg.Key.Equal(key) {
			refuse(w, openAIFault, http.StatusUnauthorized, "invalid_api_key", "the key is missing or wrong")
			return
		}
	}
	p.mux.ServeHTTP(w, r)
}

// presented is the key of a request and the header that carried it.
func presented(r *http.Request) (key, header string) {
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	plain := r.Header.Get("x-api-key")
	switch {
	case ok && plain == "":
		return bearer, "Authorization"
	case plain != "" && r.Header.Get("Authorization") == "":
		return plain, "x-api-key"
	}
	return "", ""
}

// Received are the requests whose answers ended last or go on, oldest first.
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
		p.forgetLocked()
	}
	r.At = time.Now()
	p.received = append(p.received, r)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.EndedAt = time.Now()
	}
}

// forgetLocked drops the request whose answer ended first.
func (p *Provider) forgetLocked() {
	first := -1
	for i, r := range p.received {
		if !r.EndedAt.IsZero() && (first < 0 || r.EndedAt.Before(p.received[first].EndedAt)) {
			first = i
		}
	}
	if first >= 0 {
		p.received = slices.Delete(p.received, first, first+1)
	}
}

func (p *Provider) models(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"object":"list","data":[{"id":"scripted","object":"model","owned_by":"bivouac"}]}`+"\n") // the client went
}

func (p *Provider) complete(w http.ResponseWriter, r *http.Request, d dialect) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	var in *asked
	if err == nil && (d.header == "" || r.Header.Get(d.header) != "") {
		in = d.read(body)
	}
	if in == nil {
		refuse(w, d.fault, http.StatusBadRequest, "invalid_request_error", "the request is none of the format of "+r.URL.Path)
		return
	}
	rule, vars := p.cfg.Script.match(in.conversation)
	got := &Received{Path: r.URL.Path, Body: body}
	_, got.KeyHeader = presented(r)
	got.Authorization = got.KeyHeader != ""
	if rule != nil {
		got.Rule = rule.Name
	}
	defer p.remember(got)()
	p.cfg.Log.Debug("scripted answer", "rule", got.Rule, "results", len(in.results))
	if rule == nil {
		refuse(w, d.fault, http.StatusUnprocessableEntity, "no_rule",
			"no rule of "+p.cfg.Script.Name+" matches: "+in.describe()+"; add a rule for it")
		return
	}
	a, err := rule.answer(vars)
	if err != nil {
		refuse(w, d.fault, http.StatusUnprocessableEntity, "bad_rule", "rule "+rule.Name+" cannot be filled in: "+err.Error())
		return
	}
	if !wait(r.Context(), rule.delay) {
		return
	}
	p.respond(w, d, newStream(w, r.Context(), in, rule, a, len(body)))
}

func (p *Provider) respond(w http.ResponseWriter, d dialect, s *stream) {
	switch rule := s.rule; {
	case rule.Error != nil:
		if after := rule.Error.retryAfter; after > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
		}
		refuse(w, d.fault, rule.Error.Status, rule.Error.Code, rule.Error.Message)
	case rule.Garbage:
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"half a \n\n<html>bad gateway</html>\n\n") // the client went
	default:
		s.respond(d.pen(s))
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

func refuse(w http.ResponseWriter, body func(int, string, string) any, status int, code, text string) {
	if text == "" {
		text = http.StatusText(status)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body(status, code, text)) // the client went
}

func randomHex() string {
	var b [9]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// KeyFromFile reads the key that callers must present.
func KeyFromFile(path string) (secret.Value, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeInvalidArgument, "the key file cannot be read: %w", err)
	}
	return secret.New(strings.TrimSpace(string(b)))
}

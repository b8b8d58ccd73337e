package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

const (
	first        = "refresh-token-canary-1"
	clientSecret = "client-secret-canary"
	tenant       = protocol.TenantID("ten_00000000000000000000000001")
)

// shelf is a store of values.
type shelf struct {
	mu     sync.Mutex
	values map[string]string
	broken bool
	gone   bool // it was deleted
	writes []string
}

func (s *shelf) RouteKey(_ context.Context, _ protocol.TenantID, name string) (secret.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return secret.New(s.values[name])
}

func (s *shelf) ReplaceCredential(_ context.Context, _ protocol.TenantID, name string, was, is secret.Value) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken:
		return protocol.Errorf(protocol.CodeUnavailable, "the shelf is away")
	case s.gone:
		return protocol.Errorf(protocol.CodeNotFound, "it was deleted")
	case !was.Equal(s.values[name]):
		return protocol.Errorf(protocol.CodeConflict, "another one")
	}
	s.values[name] = is.Reveal()
	s.writes = append(s.writes, is.Reveal())
	return nil
}

func (s *shelf) set(broken bool, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
	if value != "" {
		s.values["calendar"] = value
	}
}

func (s *shelf) stored() secret.Value {
	v, _ := s.RouteKey(context.Background(), tenant, "calendar")
	return v
}

// issuer is an authorization server that rotates.
type issuer struct {
	mu      sync.Mutex
	good    string // the one refresh token that counts
	rotates bool
	n       int
	asked   []url.Values
	basic   []string
	answer  func(w http.ResponseWriter, form url.Values) // nil: as it should
	latency time.Duration
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(i.latency)
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = r.ParseForm()
	i.asked = append(i.asked, r.PostForm)
	user, pass, _ := r.BasicAuth()
	i.basic = append(i.basic, user+":"+pass)
	if i.answer != nil {
		i.answer(w, r.PostForm)
		return
	}
	if r.PostForm.Get("grant_type") == RefreshToken && r.PostForm.Get("refresh_token") != i.good {
		fail(w, 400, "invalid_grant")
		return
	}
	i.n++
	out := map[string]any{"access_token": fmt.Sprintf("access-token-canary-%d", i.n), "token_type": "bearer", "expires_in": 3600}
	if i.rotates {
		i.good = fmt.Sprintf("refresh-token-canary-%d", i.n+1)
		out["refresh_token"] = i.good
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// fail says no, and repeats everything that must not be repeated.
func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":%q,"error_description":"%s %s is wrong","error_uri":"https://x/%s"}`, code, first, clientSecret, first)
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.asked)
}

// room is Tokens with their server, in virtual time.
type room struct {
	t      *testing.T
	tokens *Tokens
	shelf  *shelf
	issuer *issuer
	log    bytes.Buffer
}

func inRoom(t *testing.T, change func(*Config), test func(t *testing.T, r *room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &room{t: t, issuer: &issuer{good: first, rotates: true, latency: time.Second},
			shelf: &shelf{values: map[string]string{"calendar": first, "calendar-client": clientSecret}}}
		ln := newPipes()
		server := &http.Server{Handler: r.issuer}
		go server.Serve(ln)
		defer server.Close()
		c := Config{Name: "calendar", TokenURL: "http://id.example/token", Grant: RefreshToken, ClientID: "bivouac", Secret: "calendar-client",
			Client: &http.Client{Transport: &http.Transport{DialContext: ln.dial}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
		if change != nil {
			change(&c)
		}
		start := time.Now()
		r.tokens = New(Params{Configs: []Config{c}, Store: r.shelf, Elapsed: func() time.Duration { return time.Since(start) }, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.tokens.Run(ctx) }()
		synctest.Wait()
		test(t, r)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)                                 // a server that is slow has ended
		if s := r.log.String(); strings.Contains(s, "canary") { // INV-17
			t.Errorf("the log holds a canary: %s", s)
		}
	})
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *room) access() (string, error) {
	a, err := r.tokens.Access(r.t.Context(), tenant, "calendar", r.shelf.stored())
	return a.Token.Reveal(), err
}

func (r *room) want(token string) {
	r.t.Helper()
	if got, err := r.access(); err != nil || got != token {
		r.t.Errorf("got %q, %v; not %q", got, err, token)
	}
}

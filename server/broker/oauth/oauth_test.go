package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
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

// A token is got once, used until shortly before its end, and got anew then; each
// refresh token that the server gave is stored before anybody has its access token.
func TestTokensAreGotBeforeTheirEnd(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		if r.shelf.stored().Reveal() != "refresh-token-canary-2" {
			t.Error("the refresh token was not stored")
		}
		time.Sleep(58 * time.Minute)
		r.want("access-token-canary-1")
		time.Sleep(90 * time.Second)
		r.want("access-token-canary-2")
		if got := r.shelf.writes; !slices.Equal(got, []string{"refresh-token-canary-2", "refresh-token-canary-3"}) {
			t.Errorf("stored %q", got)
		}
		if f := r.issuer.asked[1]; f.Get("refresh_token") != "refresh-token-canary-2" || f.Get("client_secret") != "" || r.issuer.basic[1] != "bivouac:"+clientSecret {
			t.Errorf("asked with %v", f)
		}
	})
}

// Many who need a token send one request, also those who hold what it replaces.
func TestOneRequestForMany(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		old := r.shelf.stored()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if a, err := r.tokens.Access(t.Context(), tenant, "calendar", old); err != nil || a.Token.Reveal() != "access-token-canary-1" {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		if a, err := r.tokens.Access(t.Context(), tenant, "calendar", old); err != nil || r.issuer.count() != 1 {
			t.Errorf("%d requests, %v", r.issuer.count(), err)
		} else if hidden := secret.NewRedactor(a.Hidden...); !hidden.Found(first) || !hidden.Found("refresh-token-canary-2") || !hidden.Found(clientSecret) {
			t.Error("an answer may repeat what the token was made of")
		}
	})
}

// Who goes does not take the request along: its answer is stored.
func TestNobodyEndsARequest(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := r.tokens.Access(ctx, tenant, "calendar", r.shelf.stored()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Second)
		if r.shelf.stored().Reveal() != "refresh-token-canary-2" || r.issuer.count() != 1 {
			t.Error("the answer was lost")
		}
		r.want("access-token-canary-1")
	})
}

// A refresh token that was revoked is a refusal of its own kind, with the command that
// mends it, and asks nobody again before another is stored. INV-17.
func TestRevokedRefreshToken(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.issuer.good = "none"
		for range 3 {
			_, err := r.access()
			if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || protocol.DetailOf(err) != protocol.DetailCredentialRefused ||
				!strings.Contains(err.Error(), "bivouac credential set calendar") || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v", err)
			}
		}
		report := finding.From("broker")
		r.tokens.Examine(report)
		if len(report.All) != 1 || report.All[0].Level != finding.Problem || strings.Contains(fmt.Sprint(report.All), "canary") {
			t.Errorf("%+v", report.All)
		}
		if r.issuer.count() != 1 {
			t.Errorf("asked %d times", r.issuer.count())
		}
		r.issuer.mu.Lock()
		r.issuer.good = "refresh-token-canary-9"
		r.issuer.mu.Unlock()
		r.shelf.set(false, "refresh-token-canary-9")
		r.want("access-token-canary-1")
	})
}

// A refresh token that cannot be stored is kept, used, written again and told; a
// restart after that goes on with it. INV-18.
func TestReplacedWhileTheStoreIsAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		report := finding.From("broker")
		r.tokens.Examine(report)
		if len(report.All) != 1 || report.All[0].Level != finding.Problem || !strings.Contains(report.All[0].What, "not stored yet") {
			t.Errorf("%+v", report.All)
		}
		time.Sleep(2 * time.Hour)
		r.want("access-token-canary-2") // with the token that is in memory alone
		if r.shelf.stored().Reveal() != first {
			t.Error("stored, though it could not be")
		}
		r.shelf.set(false, "")
		time.Sleep(saveAgain + time.Second)
		if got := r.shelf.stored().Reveal(); got != "refresh-token-canary-3" {
			t.Errorf("stored is %q", got)
		}
		report = finding.From("broker")
		r.tokens.Examine(report)
		if report.All[0].Level == finding.Problem {
			t.Errorf("%+v", report.All)
		}
	})
}

// A refresh token that could not be stored waits for a request that is under way when it
// is its turn, and is stored after that, also when the request failed, and at the end
// of the broker. INV-18.
func TestNotStoredBesideARequest(t *testing.T) {
	// begin leaves the refresh token of a request unstored, and makes the next fail.
	begin := func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		r.issuer.mu.Lock()
		r.issuer.answer = func(w http.ResponseWriter, _ url.Values) { fail(w, 503, "server_error") }
		r.issuer.mu.Unlock()
		time.Sleep(saveAgain - 500*time.Millisecond)
		one, _ := secret.New("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
	}
	stored := func(t *testing.T, r *room) {
		t.Helper()
		if got := r.shelf.stored().Reveal(); got != "refresh-token-canary-2" {
			t.Errorf("stored is %q", got)
		}
	}
	t.Run("the broker goes on", func(t *testing.T) {
		inRoom(t, nil, func(t *testing.T, r *room) {
			begin(t, r)
			if got, err := r.access(); protocol.CodeOf(err) != protocol.CodeUnavailable {
				t.Errorf("got %q, %v", got, err)
			}
			r.shelf.set(false, "")
			time.Sleep(saveAgain + time.Second)
			stored(t, r)
		})
	})
	t.Run("the broker ends", func(t *testing.T) {
		var left *room
		inRoom(t, nil, func(t *testing.T, r *room) {
			left = r
			begin(t, r)
			go r.access()
			synctest.Wait() // its request is under way
			r.shelf.set(false, "")
		})
		stored(t, left)
	})
}

// spy is told of a line before whoever wrote it goes on.
type spy struct {
	slog.Handler
	told func(line string)
}

func (s spy) Handle(ctx context.Context, r slog.Record) error {
	s.told(r.Message)
	return s.Handler.Handle(ctx, r)
}

// Who was let go by one request begins the next at once, while the one before still
// writes its last word.
func TestRequestAfterRequest(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		other, _ := secret.New("refresh-token-canary-8") // which a person stores
		var begun, ended atomic.Bool
		r.tokens.log = slog.New(spy{slog.NewTextHandler(&r.log, nil), func(line string) {
			if line != "access token" || begun.Swap(true) {
				return
			}
			r.issuer.mu.Lock()
			r.issuer.good = other.Reveal()
			r.issuer.mu.Unlock()
			r.shelf.set(false, other.Reveal())
			if a, err := r.tokens.Access(t.Context(), tenant, "calendar", other); err != nil || a.Token.Reveal() != "access-token-canary-2" {
				t.Errorf("the next: %q, %v", a.Token.Reveal(), err)
			}
			ended.Store(true)
		}})
		_, _ = r.access() // what it was given counts no more
		time.Sleep(3 * time.Second)
		if !ended.Load() {
			t.Error("no request followed")
		}
		r.want("access-token-canary-2")
	})
}

// A credential that somebody deleted while its refresh token waits to be stored is not
// written again: the token is let go, and that is found until another is stored.
func TestDeletedWhileTheStoreIsAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		r.shelf.mu.Lock()
		r.shelf.broken, r.shelf.gone = false, true
		r.shelf.mu.Unlock()
		time.Sleep(saveAgain + time.Second)
		found := func() finding.Finding {
			t.Helper()
			report := finding.From("broker")
			r.tokens.Examine(report)
			if len(report.All) != 1 || strings.Contains(fmt.Sprint(report.All), "canary") {
				t.Fatalf("%+v", report.All)
			}
			return report.All[0]
		}
		if f := found(); f.Level != finding.Warning || !strings.Contains(f.What, "was let go") || !strings.Contains(f.Mend, "bivouac credential set calendar") {
			t.Errorf("%+v", f)
		}
		if len(r.tokens.open()) != 0 || len(r.shelf.writes) != 0 {
			t.Errorf("it goes on: %d open, written %d times", len(r.tokens.open()), len(r.shelf.writes))
		}
		r.shelf.mu.Lock()
		r.shelf.gone = false
		r.shelf.mu.Unlock()
		r.shelf.set(false, r.issuer.good) // a person stores another
		r.want("access-token-canary-2")
		if f := found(); f.Level == finding.Warning || len(r.shelf.writes) != 1 {
			t.Errorf("after that: %+v, written %d times", f, len(r.shelf.writes))
		}
	})
}

// What a person stored while a token was renewed counts, and not what it replaces.
func TestStoredMeanwhile(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		synctest.Wait() // it has started
		stored := r.shelf.stored()
		time.AfterFunc(500*time.Millisecond, func() { r.shelf.set(false, "refresh-token-canary-8") })
		_, _ = r.tokens.Access(t.Context(), tenant, "calendar", stored)
		if r.shelf.stored().Reveal() != "refresh-token-canary-8" {
			t.Error("a person's credential was written over")
		}
		r.issuer.mu.Lock()
		r.issuer.good = "refresh-token-canary-8"
		r.issuer.mu.Unlock()
		if got, err := r.access(); err != nil || got == "access-token-canary-1" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A token that the upstream refuses is got anew, and a new one is not.
func TestRefusedTokens(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		one, _ := secret.New("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
		r.want("access-token-canary-1") // it is new: another would be refused too
		time.Sleep(time.Minute)
		other, _ := secret.New("access-token-canary-0")
		r.tokens.Refused(tenant, "calendar", other)
		r.want("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
		r.want("access-token-canary-2")
	})
}

// A server that is away does not end a token that is good still, and a wait is short.
func TestServerAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		r.issuer.mu.Lock()
		r.issuer.answer = func(w http.ResponseWriter, _ url.Values) { fail(w, 503, "server_error") }
		r.issuer.mu.Unlock()
		time.Sleep(59*time.Minute + 30*time.Second)
		r.want("access-token-canary-1")
		time.Sleep(time.Minute)
		if _, err := r.access(); protocol.CodeOf(err) != protocol.CodeUnavailable || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v", err)
		}
		r.issuer.mu.Lock()
		r.issuer.answer = nil
		r.issuer.mu.Unlock()
		time.Sleep(failedFor)
		r.want("access-token-canary-2")
	})
}

// What a server answers otherwise is a refusal in our words, and no word of its own.
// The twin is every test above. INV-17.
func TestStrangeAnswers(t *testing.T) {
	says := func(text string) func(http.ResponseWriter, url.Values) {
		return func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, text)
		}
	}
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter, url.Values)
		want   protocol.Code
		mend   string
	}{
		"no token":            {says(`{"token_type":"bearer"}`), protocol.CodeUnavailable, ""},
		"no JSON":             {says(`<p>` + first), protocol.CodeUnavailable, ""},
		"another kind":        {says(`{"access_token":"access-token-canary","token_type":"mac"}`), protocol.CodeFailedPrecondition, ""},
		"a short token":       {says(`{"access_token":"short","token_type":"bearer"}`), protocol.CodeFailedPrecondition, ""},
		"a line end":          {says(`{"access_token":"access-token\r\nX: canary","token_type":"bearer"}`), protocol.CodeFailedPrecondition, ""},
		"a bad refresh token": {says(`{"access_token":"access-token-canary","refresh_token":"x","token_type":"bearer"}`), protocol.CodeFailedPrecondition, "bivouac credential set calendar"},
		"a redirect": {func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Location", "https://x/"+first)
			w.WriteHeader(302)
		}, protocol.CodeFailedPrecondition, "token_url"},
		"the client":        {func(w http.ResponseWriter, _ url.Values) { fail(w, 401, "invalid_client") }, protocol.CodeFailedPrecondition, "bivouac credential set calendar-client"},
		"a code of its own": {func(w http.ResponseWriter, _ url.Values) { fail(w, 400, first) }, protocol.CodeFailedPrecondition, "token_url"},
		"too many":          {func(w http.ResponseWriter, _ url.Values) { w.WriteHeader(429) }, protocol.CodeUnavailable, ""},
		"nothing":           {func(http.ResponseWriter, url.Values) { time.Sleep(requestTimeout) }, protocol.CodeUnavailable, ""},
	} {
		inRoom(t, nil, func(t *testing.T, r *room) {
			r.issuer.answer = tc.answer
			_, err := r.access()
			if protocol.CodeOf(err) != tc.want || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), tc.mend) {
				t.Errorf("%s: %v", name, err)
			}
			if r.shelf.stored().Reveal() != first {
				t.Errorf("%s: the refresh token was replaced", name)
			}
		})
	}
}

// A client's own secret is good for tokens too, and is never rotated.
func TestClientCredentials(t *testing.T) {
	inRoom(t, func(c *Config) {
		c.Grant, c.Secret, c.InBody, c.Scopes, c.Audience = ClientCredentials, "", true, []string{"read", "write"}, "api"
	}, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		f := r.issuer.asked[0]
		if f.Get("grant_type") != ClientCredentials || f.Get("client_secret") != first || f.Get("scope") != "read write" || f.Get("audience") != "api" || f.Get("refresh_token") != "" {
			t.Errorf("asked with %v", f)
		}
		if len(r.shelf.writes) != 0 {
			t.Error("the client's secret was replaced")
		}
	})
}

// After the end nothing is got.
func TestAfterTheEnd(t *testing.T) {
	var left *room
	inRoom(t, nil, func(t *testing.T, r *room) { left = r })
	left.t = t
	if _, err := left.access(); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// A token counts as long as its answer says, with either grant, and not longer than the
// broker lets one that says nothing.
func TestLifeOfEitherGrant(t *testing.T) {
	for _, grant := range []string{RefreshToken, ClientCredentials} {
		for in, want := range map[any]int{300: 2, "300": 2, 3600: 1} { // seconds, and tokens in ten minutes
			t.Run(fmt.Sprintf("%s %T %v", grant, in, in), func(t *testing.T) {
				inRoom(t, func(c *Config) {
					if c.Grant = grant; grant == ClientCredentials {
						c.Secret = ""
					}
				}, func(t *testing.T, r *room) {
					n := 0
					r.issuer.answer = func(w http.ResponseWriter, _ url.Values) {
						n++
						w.Header().Set("Content-Type", "application/json")
						_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("access-token-canary-%d", n), "token_type": "bearer", "expires_in": in})
					}
					r.want("access-token-canary-1")
					time.Sleep(time.Minute)
					r.want("access-token-canary-1")
					time.Sleep(9 * time.Minute)
					r.want(fmt.Sprintf("access-token-canary-%d", want))
				})
			})
		}
	}
}

package login

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// server knows logins and tokens, and answers from a round trip, so that it works in
// virtual time.
type server struct {
	mu     sync.Mutex
	living map[string]time.Time // token → its end
	ttl    time.Duration
	max    time.Duration // of a token, whatever is renewed
	born   map[string]time.Time
	secret string
	logins int
	renews int
	away   bool
	root   bool

	id      string // its cluster
	strange string // said instead of every answer, with status 200
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(status int, text string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"errors":[%q]}`, text)
	}
	if s.away {
		fail(503, "Vault is sealed")
		return
	}
	if s.strange != "" {
		fmt.Fprint(w, s.strange)
		return
	}
	if r.URL.Path == "/v1/sys/seal-status" {
		fmt.Fprintf(w, `{"initialized":true,"sealed":false,"cluster_id":%q}`, s.id)
		return
	}
	var body map[string]string
	_ = json.NewDecoder(r.Body).Decode(&body)
	token := r.Header.Get("X-Vault-Token")
	end, lives := s.living[token]
	lives = lives && time.Now().Before(end)
	say := func(key, token string, left time.Duration) {
		policy := "bivouac-broker"
		if s.root {
			policy = "root"
		}
		said := map[string]any{"request_id": "r", "lease_id": "", "lease_duration": 0, "data": nil, "auth": nil}
		said[key] = map[string]any{"client_token": token, "id": token, "accessor": "of-" + token, "policies": []string{policy}, "lease_duration": int(left.Seconds()), "ttl": int(left.Seconds()), "renewable": true}
		_ = json.NewEncoder(w).Encode(said)
	}
	switch path := strings.TrimPrefix(r.URL.Path, "/v1/"); {
	case path == "auth/approle/login":
		s.logins++
		if body["secret_id"] != s.secret {
			fail(400, "invalid role or secret ID")
			return
		}
		made := fmt.Sprintf("hvs.made-%08d", s.logins)
		s.living[made], s.born[made] = time.Now().Add(s.ttl), time.Now()
		say("auth", made, s.ttl)
	case !lives:
		fail(403, "permission denied")
	case path == "auth/token/lookup-self":
		say("data", token, time.Until(end))
	case path == "auth/token/renew-self":
		s.renews++
		end = time.Now().Add(s.ttl)
		if last := s.born[token].Add(s.max); end.After(last) {
			end = last
		}
		s.living[token] = end
		say("auth", token, time.Until(end))
	default:
		fail(403, "permission denied")
	}
}

type world struct {
	*server
	*Session
	file string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := &server{living: map[string]time.Time{}, born: map[string]time.Time{}, ttl: time.Hour, max: 24 * time.Hour, secret: "secret-0123456789", id: "blue"}
	w := &world{server: s, file: filepath.Join(t.TempDir(), "secret-id")}
	w.write(t, s.secret)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	c, err := client.New(client.Config{Address: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w.Session = New(c, Auth{Method: AppRole, Mount: "approle", RoleID: "r", File: w.file}, slog.New(slog.DiscardHandler))
	return w
}

func (w *world) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(w.file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) with(change func()) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	change()
}

func nothing(context.Context, secret.Value) error { return nil }

// ask something that every living token may.
func (w *world) ask(ctx context.Context) error {
	return w.Do(ctx, func(ctx context.Context, token secret.Value) error {
		_, err := w.client.Read(ctx, token, "auth/token/lookup-self")
		return err
	})
}

// A token that dies is replaced, with the file read anew; one login serves everybody.
func TestLoginAgain(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := w.ask(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if w.logins != 1 {
		t.Errorf("%d logins", w.logins)
	}
	w.with(func() { clear(w.living); w.secret = "rotated-0123456789" })
	w.write(t, w.secret)
	if err := w.ask(t.Context()); err != nil || w.logins != 2 {
		t.Errorf("after the rotation: %v, %d logins", err, w.logins)
	}
	// A right that is missing is no dead token.
	err := w.Do(t.Context(), func(ctx context.Context, token secret.Value) error {
		_, err := w.client.Read(ctx, token, "secret/x")
		return err
	})
	if client.KindOf(err) != client.Refused || w.logins != 2 {
		t.Errorf("a missing right: %v, %d logins", err, w.logins)
	}
}

// A login that fails says why and how, never with the secret, and is not tried for
// every caller.
func TestLoginRefused(t *testing.T) {
	w := newWorld(t)
	w.write(t, "wrong-0123456789")
	err := w.Do(t.Context(), nothing)
	if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "approle") || strings.Contains(err.Error(), "wrong-") {
		t.Errorf("a wrong secret: %v", err)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if w.Do(t.Context(), nothing) == nil {
				t.Error("a wrong secret logs in")
			}
		})
	}
	all.Wait()
	if w.logins > 2 {
		t.Errorf("%d logins within a moment", w.logins)
	}
	for what, spoil := range map[string]func(string) error{
		"open to others": func(file string) error { return os.Chmod(file, 0o644) },
		"empty":          func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"absent":         os.Remove,
	} {
		w := newWorld(t)
		if err := spoil(w.file); err != nil {
			t.Fatal(err)
		}
		if err := w.Do(t.Context(), nothing); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || w.logins != 0 {
			t.Errorf("%s: %v, %d logins", what, err, w.logins)
		}
	}
	r := newWorld(t)
	r.root = true
	if err := r.Do(t.Context(), nothing); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "root") {
		t.Errorf("a root token: %v", err)
	}
}

// quiet serves without a network.
func quiet(t *testing.T, h http.Handler) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Address: "http://127.0.0.1:8200", Dial: pipeDial(t, h)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The token is renewed at half of its life, for days, and made anew near its end.
func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &server{living: map[string]time.Time{}, born: map[string]time.Time{}, ttl: time.Hour, max: 24 * time.Hour, secret: "secret-0123456789", id: "blue"}
		w := &world{server: s, file: filepath.Join(dir, "secret-id")}
		w.write(t, s.secret)
		w.Session = New(quiet(t, s), Auth{Method: AppRole, Mount: "approle", RoleID: "r", File: w.file}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- w.Run(ctx) }()
		for range 3 * 24 * 6 {
			time.Sleep(10 * time.Minute)
			w.with(func() {
				living := 0
				for _, end := range w.living {
					if time.Now().Before(end) {
						living++
					}
				}
				if living == 0 {
					t.Fatalf("no token lives after %d logins", w.logins)
				}
			})
		}
		w.with(func() {
			if w.logins < 3 || w.logins > 5 || w.renews < 100 {
				t.Errorf("%d logins and %d renewals in three days", w.logins, w.renews)
			}
			w.away = true
		})
		time.Sleep(2 * time.Hour) // the token ends meanwhile
		w.with(func() { w.away = false })
		time.Sleep(retryMax + time.Second)
		if err := w.ask(t.Context()); err != nil {
			t.Errorf("after two hours without the server: %v", err)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

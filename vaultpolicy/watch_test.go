package vaultpolicy

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/vaultpolicy/client"
)

// world is an adapter over the fake, in virtual time.
type world struct {
	*Vault
	fake *fake
	log  *slog.Logger

	mu     sync.Mutex
	ended  []authority.Ended
	stop   func()
	audits []source // that the broker reads
}

func config(t testing.TB) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret-id")
	if err := os.WriteFile(file, []byte("secret-id-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{Address: "http://127.0.0.1:8200", PeriodText: fakePeriod.String(), Auth: &Auth{Method: "approle", RoleID: "r", SecretIDFile: file}}.withDefaults(func(string) string { return "" })
}

func newWorld(t *testing.T) *world {
	f, c := newFake(t)
	w := &world{fake: f, log: slog.New(slog.DiscardHandler)}
	w.restart(t, c)
	return w
}

// restart is a broker that begins anew over the same server.
func (w *world) restart(t *testing.T, c *client.Client) {
	t.Helper()
	if w.stop != nil {
		w.stop()
	}
	began := time.Now()
	v, err := New(Params{Config: config(t), Trust: plainTrust{}, Log: w.log, Client: c,
		Elapsed: func() time.Duration { return time.Since(began) + time.Hour }})
	if err != nil {
		t.Fatal(err)
	}
	v.follow(w.audits...)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() {
		over <- v.Run(ctx, func(e authority.Ended) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, e)
		})
	}()
	var once sync.Once
	w.Vault, w.stop = v, func() {
		once.Do(func() {
			cancel()
			if err := <-over; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(w.stop)
	synctest.Wait()
}

func (w *world) told() []authority.Ended {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]authority.Ended(nil), w.ended...)
}

func (w *world) grant(t *testing.T) (authority.Grant, []byte) {
	t.Helper()
	g := authoritytest.NewGrant("weather")
	if err := w.PutCredential(t.Context(), g.Tenant, "weather", []byte(authoritytest.Value)); err != nil {
		t.Fatal(err)
	}
	sealed, err := w.CreateGrant(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return g, sealed
}

// use asks about grants as open flows do, for a time.
func (w *world) use(ctx context.Context, d time.Duration, grants ...authority.Grant) (errs []error) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		errs = errs[:0]
		for _, g := range grants {
			errs = append(errs, w.Alive(ctx, g.ID))
		}
	}
	return errs
}

func codeIs(t *testing.T, what string, err error, want protocol.Code) {
	t.Helper()
	if protocol.CodeOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// tokenOf finds a grant's token in the fake.
func (f *fake) tokenOf(g authority.Grant) (token string) {
	for key, x := range f.tokens {
		if x.grant == g.ID.String() {
			token = key
		}
	}
	return token
}

func (f *fake) key(g authority.Grant) string {
	return "bivouac-grants/" + g.Principal.String() + "/" + g.ID.String()
}

// Every way in which an admin ends a grant is seen in time, told once with its
// reason, and ends this grant alone. INV-13.
func TestEndedOutside(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(f *fake, g authority.Grant)
		within time.Duration
		how    string
	}{
		"token revoked":   {func(f *fake, g authority.Grant) { delete(f.tokens, f.tokenOf(g)) }, defaultPoll, "revoked in the server"},
		"entity disabled": {func(f *fake, g authority.Grant) { f.entities["ent-user-"+g.Principal.String()] = true }, defaultPoll, "disabled"},
		"entity deleted":  {func(f *fake, g authority.Grant) { delete(f.entities, "ent-user-"+g.Principal.String()) }, defaultPoll, "deleted"},
		"index deleted":   {func(f *fake, g authority.Grant) { delete(f.kv, f.key(g)) }, sweep, "index was deleted"},
		"index state": {func(f *fake, g authority.Grant) {
			edited := map[string]any{}
			for k, v := range f.kv[f.key(g)][0] {
				edited[k] = v
			}
			edited["state"] = "off"
			f.kv[f.key(g)] = append(f.kv[f.key(g)], edited)
		}, sweep, "index says so"},
		"index emptied": {func(f *fake, g authority.Grant) {
			f.kv[f.key(g)] = append(f.kv[f.key(g)], map[string]any{})
		}, sweep, "changed by hand"},
		"another's token": {func(f *fake, g authority.Grant) { f.tokens[f.tokenOf(g)].grant = "" }, defaultPoll, "something else"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, sealed := w.grant(t)
				other, otherSealed := w.grant(t)
				for _, err := range w.use(t.Context(), time.Minute, g, other) {
					if err != nil {
						t.Fatal(err)
					}
				}
				w.fake.with(func() { c.end(w.fake, g) })
				errs := w.use(t.Context(), c.within+time.Second, g, other)
				codeIs(t, "the ended grant", errs[0], protocol.CodePermissionDenied)
				codeIs(t, "the other", errs[1], "")
				told := w.told()
				if len(told) != 1 || told[0].Grant != g.ID || !strings.Contains(told[0].How, c.how) {
					t.Errorf("told %+v", told)
				}
				_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				codeIs(t, "mint", err, protocol.CodePermissionDenied)
				if v, err := w.Mint(t.Context(), authoritytest.Use(other, otherSealed, "weather")); err != nil || !v.Equal(authoritytest.Value) {
					t.Error("the other mints", err)
				}
				w.fake.with(func() {
					if token := w.fake.tokenOf(g); token != "" {
						t.Error("its token lives on")
					}
					if v := w.fake.kv[w.fake.key(g)]; len(v) == 0 || v[len(v)-1]["state"] != stateRevoked {
						t.Error("the index does not say so")
					}
				})
				_, err = w.CreateGrant(t.Context(), g)
				codeIs(t, "the same grant again", err, protocol.CodeConflict)
			})
		})
	}
}

// Silence of the server ends no grant, refuses all of them after the grace, and is
// over when the server speaks again.
func TestSilenceEndsNothing(t *testing.T) {
	for name, fault := range map[string]func(r *http.Request) (int, string){
		"sealed":   func(*http.Request) (int, string) { return 503, "Vault is sealed" },
		"internal": func(*http.Request) (int, string) { return 500, "internal error" },
		"no active": func(*http.Request) (int, string) {
			return 500, "local node not active but active cluster node not found"
		},
		"rate limited": func(*http.Request) (int, string) { return 429, "request path: rate limit quota exceeded" },
		"hangs":        func(*http.Request) (int, string) { return -1, "" },
		"another rule": func(r *http.Request) (int, string) {
			return onlyLookups(r, 403), "egp standard policy evaluation resulted in denial"
		},
		"only look-ups": func(r *http.Request) (int, string) { return onlyLookups(r, 500), "internal error" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, sealed := w.grant(t)
				w.use(t.Context(), time.Minute, g)
				w.fake.with(func() { w.fake.fault = fault })
				codeIs(t, "within the grace", w.use(t.Context(), 8*time.Second, g)[0], "")
				codeIs(t, "after it", w.use(t.Context(), 20*time.Second, g)[0], protocol.CodeUnavailable)
				if name != "only look-ups" && name != "another rule" {
					_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
					if c := protocol.CodeOf(err); c != protocol.CodeUnavailable && c != protocol.CodeRateLimited {
						t.Errorf("mint: %v", err)
					}
				}
				codeIs(t, "ten minutes later", w.use(t.Context(), 10*time.Minute, g)[0], protocol.CodeUnavailable)
				w.fake.with(func() { w.fake.fault = nil })
				codeIs(t, "when it speaks again", w.use(t.Context(), 10*time.Second, g)[0], "")
				if told := w.told(); len(told) != 0 {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}

func onlyLookups(r *http.Request, status int) int {
	if strings.HasSuffix(r.URL.Path, "/lookup-accessor") {
		return status
	}
	return 0
}

// A login that is lost, or a right that is missing, ends no grant: the broker logs in
// again, or waits for the right.
func TestLostLoginEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		w.use(t.Context(), 10*time.Second, g)
		w.fake.with(func() {
			for key, x := range w.fake.tokens {
				if x.grant == "" {
					delete(w.fake.tokens, key)
				}
			}
		})
		codeIs(t, "after the login was revoked", w.use(t.Context(), time.Minute, g)[0], "")
		w.fake.with(func() {
			if w.fake.logins != 2 {
				t.Errorf("%d logins", w.fake.logins)
			}
			w.fake.denied = "identity/"
		})
		codeIs(t, "without the right to see persons", w.use(t.Context(), time.Minute, g)[0], protocol.CodeUnavailable)
		w.fake.with(func() { w.fake.denied = "" })
		codeIs(t, "with it again", w.use(t.Context(), 10*time.Second, g)[0], "")
		if told := w.told(); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
	})
}

// A broker that starts knows every grant, and tells of those that ended before.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, sealed := w.grant(t)
		gone, _ := w.grant(t)
		if _, err := w.RevokeGrant(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
		w.restart(t, w.client)
		w.use(t.Context(), time.Second, g)
		codeIs(t, "alive", w.Alive(t.Context(), g.ID), "")
		codeIs(t, "revoked before", w.Alive(t.Context(), gone.ID), protocol.CodePermissionDenied)
		if _, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather")); err != nil {
			t.Error(err)
		}
		if told := w.told(); len(told) != 1 || told[0].Grant != gone.ID {
			t.Errorf("told %+v", told)
		}
		list, err := w.Grants(t.Context(), g.Tenant)
		if err != nil || len(list) != 1 || !list[0].SameAs(g) {
			t.Errorf("%+v %v", list, err)
		}
		stranger := authoritytest.NewGrant("weather")
		codeIs(t, "an unknown one, first", w.Alive(t.Context(), stranger.ID), protocol.CodeUnavailable)
		time.Sleep(time.Second)
		codeIs(t, "an unknown one, then", w.Alive(t.Context(), stranger.ID), protocol.CodePermissionDenied)
	})
}

// A grant's token is renewed for as long as a broker runs, and ends a period after.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		time.Sleep(time.Hour)
		w.use(t.Context(), 5*time.Second, g)
		codeIs(t, "an hour later", w.Alive(t.Context(), g.ID), "")
		w.fake.with(func() { w.fake.denied = "auth/token/renew-accessor" })
		time.Sleep(fakePeriod + time.Minute)
		codeIs(t, "when nobody may renew it", w.use(t.Context(), 5*time.Second, g)[0], protocol.CodePermissionDenied)
		if told := w.told(); len(told) != 1 || !strings.Contains(told[0].How, "time was over") {
			t.Errorf("told %+v", told)
		}
	})
}

// A revocation that the server does not take is refused here at once, and finished
// when the server is back.
func TestRevokeWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		w.fake.with(func() { w.fake.fault = func(*http.Request) (int, string) { return 503, "Vault is sealed" } })
		_, err := w.RevokeGrant(t.Context(), g.ID)
		codeIs(t, "revoke", err, protocol.CodeUnavailable)
		codeIs(t, "alive", w.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
		w.fake.with(func() { w.fake.fault = nil })
		time.Sleep(defaultPoll + time.Second)
		w.fake.with(func() {
			if w.fake.tokenOf(g) != "" {
				t.Error("its token lives on")
			}
		})
		again, err := w.RevokeGrant(t.Context(), g.ID)
		if err != nil || again.RevokedAt.IsZero() {
			t.Errorf("again: %+v %v", again, err)
		}
	})
}

// Flows that ask all the time do not make the broker ask a silent server all the
// time, and what is wrong is logged once.
func TestSilenceIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(t)
		f.fault = func(*http.Request) (int, string) { return 503, "Vault is sealed" }
		var log lines
		w := &world{fake: f, log: slog.New(slog.NewTextHandler(&log, nil))}
		w.restart(t, c)
		stranger := authoritytest.NewGrant()
		codeIs(t, "a grant", w.use(t.Context(), 10*time.Minute, stranger)[0], protocol.CodeUnavailable)
		asked := 0
		f.with(func() {
			for _, n := range f.asked {
				asked += n
			}
			f.fault = nil
		})
		if asked > 2400 {
			t.Errorf("%d requests in ten minutes of silence", asked)
		}
		w.use(t.Context(), 20*time.Second, stranger)
		codeIs(t, "when it speaks", w.Alive(t.Context(), stranger.ID), protocol.CodePermissionDenied)
		for _, what := range []string{"the server that holds the grants cannot be asked", "the index of grants cannot be read"} {
			if n := strings.Count(log.String(), `level=WARN msg="`+what); n != 1 || !strings.Contains(log.String(), what+": it is over") {
				t.Errorf("%q stands %d times in the log:\n%s", what, n, log.String())
			}
		}
	})
}

// A standby that has not heard of a new grant ends it in no way; when it has had its
// time, what it says counts.
func TestStandbyLags(t *testing.T) {
	for name, c := range map[string]struct {
		forget, remember func(f *fake, g authority.Grant)
	}{
		"token": {
			func(f *fake, g authority.Grant) { f.tokens[f.tokenOf(g)].accessor += "-unheard" },
			func(f *fake, g authority.Grant) {
				x := f.tokens[f.tokenOf(g)]
				x.accessor = strings.TrimSuffix(x.accessor, "-unheard")
			},
		},
		"person": {
			func(f *fake, g authority.Grant) { delete(f.entities, "ent-user-"+g.Principal.String()) },
			func(f *fake, g authority.Grant) { f.entities["ent-user-"+g.Principal.String()] = false },
		},
		"index": {
			func(f *fake, g authority.Grant) { f.kv["unheard"] = f.kv[f.key(g)]; delete(f.kv, f.key(g)) },
			func(f *fake, g authority.Grant) { f.kv[f.key(g)] = f.kv["unheard"]; delete(f.kv, "unheard") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.fake.with(func() { w.fake.standby = true })
				g, _ := w.grant(t)
				w.fake.with(func() { c.forget(w.fake, g) })
				w.list.Ring()
				codeIs(t, "new and unheard of", w.use(t.Context(), 6*time.Second, g)[0], "")
				w.fake.with(func() { c.remember(w.fake, g) })
				codeIs(t, "heard of", w.use(t.Context(), time.Minute, g)[0], "")
				w.fake.with(func() { c.forget(w.fake, g) })
				codeIs(t, "gone later", w.use(t.Context(), sweep+2*time.Second, g)[0], protocol.CodePermissionDenied)
			})
		})
	}
}

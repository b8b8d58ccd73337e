package vaultpolicy

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/vaultpolicy/login"
)

// foreign are answers of what stands before a server: an ingress without a backend, a
// gateway without a route, a portal.
var foreign = map[string]struct {
	status int
	body   string
}{
	"404 page":    {404, `<html>default backend - 404</html>`},
	"404 json":    {404, `{"message":"no Route matched with those values","request_id":"3a"}`},
	"404 empty":   {404, ``},
	"403 json":    {403, `{"message":"invalid accessor"}`},
	"403 page":    {403, `<html>invalid accessor</html>`},
	"400 json":    {400, `{"error":"invalid accessor"}`},
	"200 empty":   {200, `{}`},
	"200 page":    {200, `<html>Welcome</html>`},
	"200 framed":  {200, `{"request_id":"","lease_id":"","lease_duration":0,"data":{},"auth":null}`},
	"204 nothing": {204, ``},
}

// scopes are what of the server a gateway hides.
var scopes = map[string]struct {
	hides string
	alive bool // what is in use goes on
}{
	"everything": {"/v1/", false}, "the index": {"/v1/bivouac-grants/", true},
	"tokens": {"/v1/auth/token/lookup-accessor", false}, "persons": {"/v1/identity/", false},
}

// What is not the server's answer ends no grant, and changes nothing: it is silence.
func TestForeignAnswersEndNothing(t *testing.T) {
	for what, said := range foreign {
		for where, scope := range scopes {
			t.Run(what+", "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					g, sealed := w.grant(t)
					w.use(t.Context(), time.Minute, g)
					w.fake.with(func() {
						w.fake.gateway = func(r *http.Request) (int, string) {
							if strings.HasPrefix(r.URL.Path, scope.hides) {
								return said.status, said.body
							}
							return 0, ""
						}
					})
					codeIs(t, "within the grace", w.use(t.Context(), 8*time.Second, g)[0], "")
					after := protocol.CodeUnavailable
					if scope.alive {
						after = ""
					}
					codeIs(t, "after it", w.use(t.Context(), 2*sweep, g)[0], after)
					if where == "everything" {
						_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
						if err == nil {
							t.Error("a mint without the server")
						}
					}
					w.fake.with(func() { w.fake.gateway = nil })
					codeIs(t, "when it is over", w.use(t.Context(), 2*sweep, g)[0], "")
					if told := w.told(); len(told) != 0 {
						t.Errorf("told %+v", told)
					}
					w.fake.with(func() {
						if w.fake.tokenOf(g) == "" || len(w.fake.kv[w.fake.key(g)]) != 1 {
							t.Error("the grant was changed in the server")
						}
					})
				})
			})
		}
	}
}

// A broker that is answered in the server's form by something that does not know its
// login believes nothing of it either.
func TestAbsenceWithoutProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		w.use(t.Context(), time.Minute, g)
		w.fake.with(func() {
			w.fake.gateway = func(*http.Request) (int, string) { return 404, `{"errors":[]}` }
		})
		codeIs(t, "nothing is anywhere", w.use(t.Context(), 2*sweep, g)[0], protocol.CodeUnavailable)
		// And where the proof of a round is given, but not the one after what was missing.
		var missed atomic.Bool
		w.fake.with(func() {
			w.fake.gateway = func(r *http.Request) (int, string) {
				switch path := strings.TrimPrefix(r.URL.Path, "/v1/"); {
				case path == "auth/token/lookup-self" && missed.Load():
					return 404, `{"errors":[]}`
				case path == lookupPath:
					missed.Store(true)
					return 403, `{"errors":["invalid accessor"]}`
				case strings.HasPrefix(path, "bivouac-grants/"):
					missed.Store(true)
					return 404, `{"errors":[]}`
				}
				return 0, ""
			}
		})
		w.list.Ring()
		w.use(t.Context(), sweep, g)
		w.fake.with(func() { w.fake.gateway = nil })
		codeIs(t, "when it is over", w.use(t.Context(), 2*sweep, g)[0], "")
		if told := w.told(); len(told) != 0 || !missed.Load() {
			t.Errorf("told %+v", told)
		}
	})
}

// Another server of the same set-up, at the same address, takes the same login and
// knows no grant: none ends by it, and nothing is written there. INV-13.
func TestAnotherServerEndsNothing(t *testing.T) {
	for name, index := range map[string]bool{"empty": false, "with the index alone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, c := newFake(t)
				green, _ := newFake(t)
				green.cluster = "green"
				var log lines
				w := &world{fake: f, log: slog.New(slog.NewTextHandler(&log, nil))}
				w.restart(t, c)
				g, sealed := w.grant(t)
				gone, _ := w.grant(t)
				w.use(t.Context(), time.Minute, g, gone)
				f.with(func() {
					if index {
						maps.Copy(green.kv, f.kv)
					}
					f.instead = green
				})
				entries := len(green.kv)
				codeIs(t, "within the grace", w.use(t.Context(), 8*time.Second, g)[0], "")
				_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				codeIs(t, "a mint", err, protocol.CodeUnavailable)
				_, err = w.RevokeGrant(t.Context(), gone.ID)
				codeIs(t, "a revocation", err, protocol.CodeUnavailable)
				_, err = w.CreateGrant(t.Context(), authoritytest.NewGrant("weather"))
				codeIs(t, "a new grant", err, protocol.CodeUnavailable)
				err = w.use(t.Context(), 10*time.Minute, g)[0]
				codeIs(t, "after it", err, protocol.CodeUnavailable)
				var r finding.Report
				File{Config: w.cfg}.examineSession(t.Context(), &r, w.session, w.client)
				var said strings.Builder
				if err := r.Text(&said); err != nil || r.Worst() != finding.Problem {
					t.Errorf("doctor: %v", err)
				}
				for from, text := range map[string]string{"a refusal": err.Error(), "the log": log.String(), "doctor": said.String()} {
					if !strings.Contains(text, "blue") || !strings.Contains(text, "green") || !strings.Contains(text, "restart the broker") {
						t.Errorf("%s does not say what to do: %s", from, text)
					}
				}
				if n := strings.Count(log.String(), "level=ERROR msg=\"another server answers"); n != 1 {
					t.Errorf("%d times in the log", n)
				}
				green.with(func() {
					if green.logins != 0 || len(green.tokens) != 0 || len(green.kv) != entries {
						t.Errorf("%d logins, %d tokens and %d entries at the other", green.logins, len(green.tokens), len(green.kv)-entries)
					}
				})
				f.with(func() { f.instead = nil })
				codeIs(t, "back at the first", w.use(t.Context(), 20*time.Second, g)[0], "")
				if told := w.told(); len(told) != 0 {
					t.Errorf("told %+v", told)
				}
				f.with(func() {
					if f.tokenOf(g) == "" || f.tokenOf(gone) != "" {
						t.Error("the grant does not live, or the one that was revoked does")
					}
					f.instead = green
				})
				// A broker that starts there takes it as its own.
				w.restart(t, c)
				w.use(t.Context(), 2*time.Second, g)
				if err := w.session.Prove(t.Context()); err != nil {
					t.Error(err)
				}
				var other *login.Other
				if err := w.Alive(t.Context(), g.ID); protocol.CodeOf(err) != protocol.CodePermissionDenied || errors.As(err, &other) {
					t.Errorf("a grant of the other server: %v", err)
				}
			})
		})
	}
}

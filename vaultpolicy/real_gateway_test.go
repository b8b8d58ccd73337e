//go:build linux

package vaultpolicy

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// gateway stands before real servers as an ingress does: it ends TLS, leads to one of
// them, or answers itself.
type gateway struct {
	*httptest.Server
	mu     sync.Mutex
	to     http.Handler
	caFile string
}

func newGateway(t *testing.T, x *site) *gateway {
	t.Helper()
	g := &gateway{}
	g.lead(t, x)
	g.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		to := g.to
		g.mu.Unlock()
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Server.Close)
	g.caFile = filepath.Join(t.TempDir(), "gateway.pem")
	if err := os.WriteFile(g.caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gateway) set(h http.Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = h
}

// lead to a server.
func (g *gateway) lead(t *testing.T, x *site) {
	t.Helper()
	to, err := url.Parse(x.Address())
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(to)
	p.Transport = x.root.CloneConfig().HttpClient.Transport
	g.set(p)
}

// through a gateway.
func (g *gateway) through(c *Config) {
	quick(c)
	c.Address, c.CAFile = g.URL, g.caFile
}

// What a gateway says for a server that it does not reach ends no grant of a real one.
func TestForeignAnswersBeforeServer(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		way := newGateway(t, x)
		v, said := x.tells(t, way.through)
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		for what, answer := range foreign {
			way.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(answer.status)
				_, _ = w.Write([]byte(answer.body))
			}))
			v.list.Ring()
			if err := mints(t, v, g, sealed); protocol.CodeOf(err) != protocol.CodeUnavailable {
				t.Errorf("%s: a mint says %v", what, err)
			}
			until(t, v, g.ID, protocol.CodeUnavailable)
			way.lead(t, x)
			until(t, v, g.ID, "")
			codeIs(t, what+": a mint after it", mints(t, v, g, sealed), "")
		}
		if how := said.of(g.ID); how != "" {
			t.Errorf("the grant ended: %s", how)
		}
	})
}

// A second real server, set up in the same way and with the same secret, comes to the
// address of the first: no grant ends, nothing is made there, and all is well when the
// first is back.
func TestAnotherRealServer(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		blue, green := newSite(t, vaulttest.Start(t, p)), newSite(t, vaulttest.Start(t, p))
		if blue.cfg.Prefix != green.cfg.Prefix {
			t.Fatalf("the set-ups differ: %s, %s", blue.cfg.Prefix, green.cfg.Prefix)
		}
		id, err := os.ReadFile(blue.cfg.path(blue.cfg.Auth.SecretIDFile))
		if err != nil {
			t.Fatal(err)
		}
		role := "auth/" + green.cfg.Auth.Mount + "/role/" + green.cfg.Auth.Role
		if _, err := green.root.Logical().WriteWithContext(t.Context(), role+"/custom-secret-id", map[string]any{"secret_id": strings.TrimSpace(string(id))}); err != nil {
			t.Fatal(err)
		}
		way := newGateway(t, blue)
		v, said := blue.tells(t, way.through)
		g, sealed := blue.grant(t, v)
		until(t, v, g.ID, "")
		tokens := func() int {
			names, err := green.client.List(t.Context(), green.token, "auth/token/accessors/")
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		before := tokens()
		way.lead(t, green)
		v.list.Ring()
		codeIs(t, "a mint", mints(t, v, g, sealed), protocol.CodeUnavailable)
		until(t, v, g.ID, protocol.CodeUnavailable)
		_, err = v.CreateGrant(t.Context(), fresh(g))
		codeIs(t, "a new grant", err, protocol.CodeUnavailable)
		if err == nil || !strings.Contains(err.Error(), "restart the broker") {
			t.Errorf("it does not say what to do: %v", err)
		}
		for range 3 { // some rounds more
			_ = v.round(t.Context())
			_ = v.readIndex(t.Context())
		}
		if f := clusterFound(t, v); f == nil || f.Level != finding.Problem || !strings.Contains(f.Mend, "restart the broker") {
			t.Errorf("a doctor finds %+v", f)
		}
		if n := tokens(); n != before {
			t.Errorf("%d tokens were made at the other server", n-before)
		}
		way.lead(t, blue)
		until(t, v, g.ID, "")
		codeIs(t, "a mint then", mints(t, v, g, sealed), "")
		if f := clusterFound(t, v); f != nil {
			t.Errorf("the right server: %+v", f)
		}
		if how := said.of(g.ID); how != "" {
			t.Errorf("the grant ended: %s", how)
		}
		// The other server would have taken the login: a broker that begins there has one.
		fromThere := green.run(t, func(c *Config) { c.Auth.SecretIDFile = blue.cfg.path(blue.cfg.Auth.SecretIDFile) })
		if err := fromThere.session.Prove(t.Context()); err != nil {
			t.Errorf("the other server does not take the login, so the test shows nothing: %v", err)
		}
	})
}

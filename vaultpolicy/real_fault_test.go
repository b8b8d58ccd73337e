//go:build linux

package vaultpolicy

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/secret"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
	"bivouac/vaultpolicy/client"
)

// quick makes silence short, so that a test sees its end.
func quick(c *Config) { c.PollText, c.GraceText = "500ms", "2s" }

// mints reports what a mint says.
func mints(t *testing.T, v *Vault, g authority.Grant, sealed []byte) error {
	t.Helper()
	value, err := v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
	if err == nil && !value.Equal(authoritytest.Value) {
		t.Error("another value was minted")
	}
	return err
}

// The server is sealed, stopped, killed, hangs, is slow, or cannot write its audit:
// nothing is minted that it would not give, grants in use are refused after the
// grace, none ends, and all is well as soon as it is back.
func TestServerAway(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		way := x.Proxy(t)
		v, said := x.tells(t, func(c *Config) { quick(c); c.Address = way.Address() })
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		for _, c := range []struct {
			name        string
			break_, fix func()
		}{
			{"sealed", func() { x.Seal(t) }, func() { x.Unseal(t) }},
			{"stopped", func() { x.Stop(t) }, func() { x.Start(t); x.Unseal(t) }},
			{"killed", func() { x.Kill(t) }, func() { x.Start(t); x.Unseal(t) }},
			{"hanging", way.Hold, way.Pass},
			{"cut off", way.Refuse, way.Pass},
		} {
			c.break_()
			if err := mints(t, v, g, sealed); protocol.CodeOf(err) != protocol.CodeUnavailable {
				t.Errorf("%s: a mint says %v", c.name, err)
			}
			until(t, v, g.ID, protocol.CodeUnavailable)
			c.fix()
			until(t, v, g.ID, "")
			if err := mints(t, v, g, sealed); err != nil {
				t.Errorf("after %s: %v", c.name, err)
			}
		}
		mend := x.FailAudit(t)
		if err := mints(t, v, g, sealed); err == nil {
			t.Error("the server answers without its audit")
		}
		until(t, v, g.ID, protocol.CodeUnavailable)
		mend()
		until(t, v, g.ID, "")
		mend = x.BlockAudit(t)
		until(t, v, g.ID, protocol.CodeUnavailable)
		mend()
		until(t, v, g.ID, "")
		way.Slow(50 * time.Millisecond)
		if err := mints(t, v, g, sealed); err != nil {
			t.Errorf("slow: %v", err)
		}
		way.Pass()
		if how := said.of(g.ID); how != "" {
			t.Errorf("the grant ended: %s", how)
		}
		// And a revocation while the broker cannot see it is seen when it can.
		way.Hold()
		x.revoke(t, g)
		until(t, v, g.ID, protocol.CodeUnavailable)
		way.Pass()
		until(t, v, g.ID, protocol.CodePermissionDenied)
	})
}

// A broker that starts while the server is away waits for it, and says why.
func TestAwayAtStart(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		first, _ := x.tells(t, quick)
		g, sealed := x.grant(t, first)
		x.Seal(t)
		v, _ := x.tells(t, quick)
		until(t, v, g.ID, protocol.CodeUnavailable)
		if _, err := v.Grants(t.Context(), g.Tenant); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("a list: %v", err)
		}
		_, err := v.RevokeGrant(t.Context(), g.ID)
		codeIs(t, "a revocation", err, protocol.CodeUnavailable)
		_, err = v.CreateGrant(t.Context(), fresh(g))
		codeIs(t, "a new grant", err, protocol.CodeUnavailable)
		codeIs(t, "a mint", mints(t, v, g, sealed), protocol.CodeUnavailable)
		x.Unseal(t)
		until(t, v, g.ID, "")
		codeIs(t, "a mint then", mints(t, v, g, sealed), "")
	})
}

// own is the broker's token now.
func own(t *testing.T, v *Vault) secret.Value {
	t.Helper()
	var out secret.Value
	if err := v.session.Do(t.Context(), func(_ context.Context, token secret.Value) error { out = token; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// The broker's login is revoked, its secret rotated, its role lost: it logs in again
// as soon as it can, and no grant ends by it.
func TestLoginLost(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v, said := x.tells(t, quick)
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		tokens := x.root.Auth().Token()
		old := own(t, v)
		if err := tokens.RevokeTreeWithContext(t.Context(), old.Reveal()); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Credentials(t.Context(), g.Tenant); err != nil {
			t.Errorf("the next request logs in again: %v", err)
		}
		if own(t, v).Equal(old.Reveal()) {
			t.Error("the dead token is still in use")
		}
		// The secret id is gone with the token: refused, until somebody writes a new one.
		role := "auth/" + x.cfg.Auth.Mount + "/role/" + x.cfg.Auth.Role
		file := x.cfg.path(x.cfg.Auth.SecretIDFile)
		id, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.root.Logical().WriteWithContext(t.Context(), role+"/secret-id/destroy", map[string]any{"secret_id": strings.TrimSpace(string(id))}); err != nil {
			t.Fatal(err)
		}
		if err := tokens.RevokeTreeWithContext(t.Context(), own(t, v).Reveal()); err != nil {
			t.Fatal(err)
		}
		until(t, v, g.ID, protocol.CodeUnavailable)
		_, err = v.Credentials(t.Context(), g.Tenant)
		codeIs(t, "without a login", err, protocol.CodeUnavailable)
		if err == nil || !strings.Contains(err.Error(), "log in") {
			t.Errorf("it does not say that the login failed: %v", err)
		}
		codeIs(t, "a grant whose mint needs no login", mints(t, v, g, sealed), "")
		x.secretID(t)
		until(t, v, g.ID, "")
		if how := said.of(g.ID); how != "" {
			t.Errorf("the grant ended: %s", how)
		}
	})
}

// A rate limit of the server is silence, not an end; and the one that setup makes
// limits what it names.
func TestRateLimited(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		v, said := x.tells(t, quick)
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		x.cfg.TokensPerSecond = 1
		x.setup(t)
		limited := false
		for range 50 {
			err := mints(t, v, g, sealed)
			if limited = protocol.CodeOf(err) == protocol.CodeRateLimited; limited {
				break
			}
			codeIs(t, "a mint", err, "")
		}
		if !limited {
			t.Error("fifty mints in a moment pass a limit of one a second")
		}
		until(t, v, g.ID, "")
		if how := said.of(g.ID); how != "" {
			t.Errorf("the grant ended: %s", how)
		}
	})
}

// A grant that no broker renews ends with its period, also in the eyes of a broker
// that comes back.
func TestExpiry(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		// Setup refuses so short a period; the role is changed by hand.
		if _, err := x.root.Logical().WriteWithContext(t.Context(), "auth/token/roles/"+x.cfg.names().GrantRole(), map[string]any{"token_period": "6s"}); err != nil {
			t.Fatal(err)
		}
		v, said := x.tells(t, func(c *Config) { quick(c); c.PeriodText = "6s" })
		g := authoritytest.NewGrant("weather")
		if err := x.apply(t, g); err != nil {
			t.Fatal(err)
		}
		sealed, err := v.CreateGrant(t.Context(), g)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.PutCredential(t.Context(), g.Tenant, "weather", authoritytest.Seal(t, v, "weather", authoritytest.Value)); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err := v.Alive(t.Context(), g.ID); err != nil {
				t.Fatalf("while it is renewed: %v", err)
			}
		}
		n := v.names
		whole := n.Broker()
		x.putPolicy(t, n.BrokerPolicy(), strings.Replace(whole, `path "auth/token/renew-accessor"`, `path "none"`, 1))
		until(t, v, g.ID, protocol.CodePermissionDenied)
		codeIs(t, "mint", mints(t, v, g, sealed), protocol.CodePermissionDenied)
		if how := said.of(g.ID); !strings.Contains(how, "time was over") && !strings.Contains(how, "revoked in the server") {
			t.Errorf("told %q", how)
		}
	})
}

// apply opens a grant's credentials without touching the role.
func (x *site) apply(t *testing.T, g authority.Grant) error {
	t.Helper()
	x.cfg.Tenants, x.scope.Credentials = append(x.cfg.Tenants, g.Tenant.String()), []string{"weather"}
	p, err := x.cfg.Plan(x.scope)
	if err != nil {
		return err
	}
	d, err := p.Diff(t.Context(), x.client, x.token)
	if err != nil {
		return err
	}
	for _, item := range d {
		if item.Kind == "policy" {
			if _, err := x.client.Write(t.Context(), x.token, item.Path, map[string]any{"policy": item.Want["policy"]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ten thousand actions would leave nothing behind; a hundred do not either: no lease
// and no person more than before.
func TestActionsLeaveNothing(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		v := x.run(t, nil)
		g, sealed := x.grant(t, v)
		count := func() (out int) {
			for _, path := range []string{"sys/leases/lookup/auth/token/create/", "sys/leases/lookup/auth/token/create/" + v.names.GrantRole() + "/", "auth/token/accessors/", "identity/entity/id/"} {
				names, err := x.client.List(t.Context(), x.token, path)
				if err != nil && client.KindOf(err) != client.Absent {
					t.Fatal(err)
				}
				out += len(names)
			}
			return out
		}
		before := count()
		for range 100 {
			codeIs(t, "mint", mints(t, v, g, sealed), "")
		}
		if after := count(); after != before {
			t.Errorf("%d leases, tokens and persons, then %d", before, after)
		}
	})
}

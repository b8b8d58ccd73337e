//go:build linux

package vaultpolicy

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/secret"
	"bivouac/server/ledger"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
	"bivouac/vaultpolicy/client"
)

func TestMain(m *testing.M) { os.Exit(vaulttest.Main(m)) }

// site is a server that an admin has set up for a broker.
type site struct {
	*vaulttest.Server
	root   *api.Client
	client *client.Client
	token  secret.Value // the admin's
	cfg    Config
	scope  Scope
	keys   *keyring.Keyring
}

// newSite does what an admin does: setup, and the files of the broker's login.
func newSite(t testing.TB, s *vaulttest.Server) *site {
	t.Helper()
	return newSiteIn(t, s, "")
}

// newSiteIn is a site in a namespace.
func newSiteIn(t testing.TB, s *vaulttest.Server, namespace string) *site {
	t.Helper()
	prefix := s.Prefix() + "bv"
	dir := t.TempDir()
	x := &site{Server: s, root: s.Root(t)}
	if namespace != "" {
		x.root.SetNamespace(namespace)
	}
	x.cfg = Config{
		Namespace: namespace, Address: s.Address(), CAFile: s.CAFile(), Prefix: prefix, Dir: dir, TokensPerSecond: -1,
		Auth: &Auth{Method: "approle", Mount: prefix + "-approle", RoleID: prefix + "-id", SecretIDFile: "secret-id"},
	}.withDefaults(func(string) string { return "" })
	var err error
	if x.client, err = x.cfg.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.client.Close)
	if x.token, err = secret.New(s.RootToken()); err != nil {
		t.Fatal(err)
	}
	x.setup(t)
	if _, err := x.root.Logical().WriteWithContext(t.Context(), "auth/"+x.cfg.Auth.Mount+"/role/"+x.cfg.Auth.Role+"/role-id", map[string]any{"role_id": x.cfg.Auth.RoleID}); err != nil {
		t.Fatal(err)
	}
	x.secretID(t)
	if p := x.cfg.problems(false); len(p) > 0 {
		t.Fatal(p)
	}
	keys := filepath.Join(dir, "keys")
	if _, err := keyring.Init(keys); err != nil {
		t.Fatal(err)
	}
	if x.keys, err = keyring.Open(keys); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.keys.Close() })
	return x
}

// secretID gives the broker a new one.
func (x *site) secretID(t testing.TB) {
	t.Helper()
	made, err := x.root.Logical().WriteWithContext(t.Context(), "auth/"+x.cfg.Auth.Mount+"/role/"+x.cfg.Auth.Role+"/secret-id", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(x.cfg.path(x.cfg.Auth.SecretIDFile), []byte(made.Data["secret_id"].(string)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// setup applies what differs and returns how much did.
func (x *site) setup(t testing.TB) int {
	t.Helper()
	p, err := x.cfg.Plan(x.scope)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Diff(t.Context(), x.client, x.token)
	if err == nil {
		err = d.Apply(t.Context(), x.client, x.token, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// open lets a tenant's credentials be granted and bound to routes.
func (x *site) open(t testing.TB, tenant protocol.TenantID, names ...string) {
	t.Helper()
	if !slices.Contains(x.cfg.Tenants, tenant.String()) {
		x.cfg.Tenants = append(x.cfg.Tenants, tenant.String())
	}
	for _, n := range names {
		if !slices.Contains(x.scope.Credentials, n) {
			x.scope.Credentials, x.scope.Keys = append(x.scope.Credentials, n), append(x.scope.Keys, n)
		}
	}
	x.setup(t)
}

// vault is a broker's adapter.
func (x *site) vault(t testing.TB, change func(*Config)) *Vault {
	t.Helper()
	cfg := x.cfg
	if change != nil {
		change(&cfg)
	}
	v, err := New(Params{Config: cfg, Trust: x.keys, Log: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// run an adapter until the test ends.
func (x *site) run(t testing.TB, change func(*Config)) *Vault {
	t.Helper()
	v := x.vault(t, change)
	x.runs(t, v)
	return v
}

// runs an adapter until the test ends.
func (x *site) runs(t testing.TB, v *Vault) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	over := make(chan error)
	go func() { over <- v.Run(ctx, func(authority.Ended) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// grant of a new person, with a credential in the server.
func (x *site) grant(t testing.TB, v *Vault) (authority.Grant, []byte) {
	t.Helper()
	g := authoritytest.NewGrant("weather")
	x.open(t, g.Tenant, "weather")
	if err := v.PutCredential(t.Context(), g.Tenant, "weather", authoritytest.Seal(t, v, "weather", authoritytest.Value)); err != nil {
		t.Fatal(err)
	}
	sealed, err := v.CreateGrant(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return g, sealed
}

// accessor of a grant as an admin finds it.
func (x *site) accessor(t testing.TB, g authority.Grant) string {
	t.Helper()
	e, err := x.root.KVv2(x.cfg.names().Grants).Get(t.Context(), g.Principal.String()+"/"+g.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	return e.Data["accessor"].(string)
}

func (x *site) revoke(t testing.TB, g authority.Grant) {
	t.Helper()
	if err := x.root.Auth().Token().RevokeAccessorWithContext(t.Context(), x.accessor(t, g)); err != nil {
		t.Fatal(err)
	}
}

// logTo shows the log of a failed test, and fails it where a token stands in it.
func logTo(t testing.TB) *slog.Logger {
	var out lines
	t.Cleanup(func() {
		text := out.String()
		if t.Failed() {
			t.Log(text)
		}
		for _, mark := range []string{"hvs.", "hvb.", "s.CAES", authoritytest.Value} {
			if strings.Contains(text, mark) {
				t.Errorf("the log holds a secret (%s…)", mark)
			}
		}
	})
	return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestAuthority(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		authoritytest.Run(t, func(t *testing.T) authoritytest.Fixture {
			x := newSite(t, s)
			return authoritytest.Fixture{
				Authority: x.vault(t, nil), RootKey: x.keys.Root().PublicKey.(ed25519.PublicKey),
				Reopen: func(t *testing.T) broker.Authority { return x.vault(t, nil) },
				Open:   func(t *testing.T, tenant protocol.TenantID, names ...string) { x.open(t, tenant, names...) },
				Revoke: func(t *testing.T, g authority.Grant) { x.revoke(t, g) },
			}
		})
	})
}

// Setup on an empty server makes everything, a second time nothing, and every policy
// is one that the server takes as it is.
func TestSetup(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		x.cfg.TokensPerSecond = 400
		tenant := authoritytest.NewGrant().Tenant
		x.open(t, tenant, "weather", "mail.v2")
		plan, err := x.cfg.Plan(x.scope)
		if err != nil {
			t.Fatal(err)
		}
		d, err := plan.Diff(t.Context(), x.client, x.token)
		if err != nil || len(d) != 0 {
			t.Fatalf("a second time differs: %s %v", d, err)
		}
		files, err := filepath.Glob("policies/*.hcl")
		if err != nil || len(files) != 8 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name := x.Prefix() + filepath.Base(f)
			if err := x.root.Sys().PutPolicyWithContext(t.Context(), name, string(text)); err != nil {
				t.Errorf("%s: %v", f, err)
			}
		}
		// Whatever is changed by hand is found, named and mended; what somebody else has
		// added stays.
		n := x.cfg.names()
		if err := x.root.Sys().DeletePolicyWithContext(t.Context(), n.GrantPolicy()); err != nil {
			t.Fatal(err)
		}
		if _, err := x.root.Logical().WriteWithContext(t.Context(), "auth/token/roles/"+n.GrantRole(), map[string]any{"orphan": false, "path_suffix": "somebody"}); err != nil {
			t.Fatal(err)
		}
		d, err = plan.Diff(t.Context(), x.client, x.token)
		if err != nil || len(d) != 2 || !d[0].Missing || d[1].Missing || !strings.Contains(strings.Join(d.Missing(), "\n"), "no grant can be used") {
			t.Fatalf("%s %v", d, err)
		}
		if x.setup(t) != 2 || x.setup(t) != 0 {
			t.Error("applying does not mend it")
		}
		if x.policy(t, n.BrokerPolicy()) != n.Broker() || !strings.Contains(x.policy(t, n.RoutesPolicy()), tenant.String()+"/mail.v2") {
			t.Error("the policies are not what they should be")
		}
		if _, err := x.client.Read(t.Context(), x.token, "sys/quotas/rate-limit/"+n.Prefix+"-mint"); err != nil {
			t.Error(err)
		}
		if err := x.client.Delete(t.Context(), x.token, "sys/quotas/rate-limit/"+n.Prefix+"-mint"); err != nil {
			t.Error(err)
		}
	})
}

func (x *site) policy(t testing.TB, name string) string {
	t.Helper()
	text, err := x.root.Sys().GetPolicyWithContext(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A receipt that the server signed is checked as one of the keyring's is, over a
// rotation of the key; without the key there is no receipt from there.
func TestReceipts(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.run(t, nil)
		fingerprint := identity.Fingerprint(x.keys.Root())
		receipt := []byte(`{"grant":"grt_x"}`)
		check := func(jws string, err error) string {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			if said, err := ledger.OpenReceipt(jws, fingerprint); err != nil || string(said) != string(receipt) {
				t.Errorf("%s %v", said, err)
			}
			return jws
		}
		first := check(v.SignReceipt(t.Context(), receipt, x.keys))
		check(x.keys.SignReceipt(t.Context(), receipt))
		n := v.names
		if _, err := x.root.Logical().WriteWithContext(t.Context(), n.Transit+"/keys/"+n.ReceiptKey()+"/rotate", nil); err != nil {
			t.Fatal(err)
		}
		second := check(v.SignReceipt(t.Context(), receipt, x.keys))
		if strings.Split(first, ".")[0] == strings.Split(second, ".")[0] {
			t.Error("the rotated key has the certificate of the first")
		}
		check(first, nil) // what was signed before stays good
		x.putPolicy(t, n.BrokerPolicy(), strings.Replace(n.Broker(), `path "`+n.Transit+`/sign/`, `path "none/`, 1))
		if _, err := v.SignReceipt(t.Context(), receipt, x.keys); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "/sign/") {
			t.Errorf("without the right: %v", err)
		}
	})
}

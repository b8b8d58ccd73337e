//go:build linux

package vaultpolicy

import (
	"os"
	"strings"
	"testing"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// worst are the findings that are not well, as "check: what".
func worst(r *finding.Report) (all []string) {
	for _, f := range r.All {
		if f.Level != finding.OK {
			all = append(all, f.Check+": "+f.What)
		}
	}
	return all
}

// A sound server has nothing to find, a running broker says the same, and looking
// leaves no token behind. Then each thing that is broken is found alone.
func TestExamine(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		x.open(t, authoritytest.NewGrant().Tenant, "weather")
		x.cfg.Audit = &Audit{File: x.AuditFile()}
		file := func() File { return File{Config: x.cfg, Scope: x.scope} }
		examine := func(f File) *finding.Report {
			r := finding.From("broker")
			f.Examine(t.Context(), r)
			return r
		}
		before := x.tokens(t)
		if r := examine(file()); len(worst(r)) > 0 || len(r.All) != 5 {
			t.Errorf("a sound server: %+v", r.All)
		}
		if after := x.tokens(t); after != before {
			t.Errorf("%d tokens before, %d after", before, after)
		}
		running, r := x.run(t, func(c *Config) { *c = x.cfg }), finding.From("broker")
		running.Examine(t.Context(), r)
		if len(worst(r)) > 0 || len(r.All) != 4 {
			t.Errorf("a running broker: %+v", r.All)
		}
		n := x.cfg.names()
		for name, c := range map[string]struct {
			breaks func(t *testing.T, f *File)
			want   string
		}{
			"a right": {func(t *testing.T, _ *File) {
				less := strings.Replace(n.Broker(), `path "auth/token/revoke-accessor"`, `path "auth/token/nothing"`, 1)
				if err := x.root.Sys().PutPolicyWithContext(t.Context(), n.BrokerPolicy(), less); err != nil {
					t.Fatal(err)
				}
			}, "vault.rights: the broker's login (role "},
			"a policy of a credential": {func(t *testing.T, f *File) {
				f.Scope.Keys = nil
				f.Tenants = append(f.Tenants, "ten_01arz3ndektsv4rrffq69g5fav")
			}, "vault.opened: the policy " + n.Prefix + "-use-ten_01arz3ndektsv4rrffq69g5fav-weather is missing"},
			"no tenant":       {func(_ *testing.T, f *File) { f.Tenants, f.Scope.Keys = nil, nil }, "vault.opened: the vault block names no tenant"},
			"no audit source": {func(_ *testing.T, f *File) { f.Audit = nil }, "vault.audit: the vault block has no audit source"},
			"no audit file":   {func(_ *testing.T, f *File) { f.Audit = &Audit{File: x.AuditFile() + ".not"} }, "vault.audit: open "},
			"a silent file": {func(t *testing.T, f *File) {
				f.Audit = &Audit{File: f.path("silent")}
				if err := os.WriteFile(f.path("silent"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}, "vault.audit: " + x.cfg.path("silent") + " did not grow"},
			"no broker at the socket": {func(_ *testing.T, f *File) { f.Audit = &Audit{Socket: "socket"} }, "vault.audit: " + x.cfg.path("socket") + " is not there"},
			"a wrong secret id": {func(t *testing.T, f *File) {
				auth := *f.Auth
				auth.SecretIDFile = "wrong"
				f.Auth = &auth
				if err := os.WriteFile(f.path("wrong"), []byte("00000000-0000-0000-0000-000000000000"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, "vault.login: the broker cannot log in (approle)"},
			"no secret id": {func(_ *testing.T, f *File) {
				auth := *f.Auth
				auth.SecretIDFile = "none"
				f.Auth = &auth
			}, "vault.login: the login was not tried: open "},
			"another authority": {func(t *testing.T, f *File) { f.CAFile = "" }, "vault.server: " + x.cfg.Address + " does not answer"},
		} {
			f := file()
			c.breaks(t, &f)
			found := worst(examine(f))
			if len(found) != 1 && !(strings.HasPrefix(name, "another") && len(found) > 0) || !strings.HasPrefix(found[0], c.want) {
				t.Errorf("%s: %q, want %q alone", name, found, c.want)
			}
			x.setup(t)
		}
		x.Seal(t)
		if found := worst(examine(file())); len(found) == 0 || !strings.HasPrefix(found[0], "vault.server: "+x.cfg.Address) || !strings.Contains(found[0], "is sealed: 0 of 1 unseal keys") {
			t.Errorf("sealed: %q", found)
		}
		x.Unseal(t)
		if found := worst(examine(file())); len(found) > 0 {
			t.Errorf("unsealed again: %q", found)
		}
	})
}

// tokens that the server has.
func (x *site) tokens(t *testing.T) int {
	t.Helper()
	all, err := x.root.Logical().ListWithContext(t.Context(), "auth/token/accessors/")
	if err != nil {
		t.Fatal(err)
	}
	return len(all.Data["keys"].([]any))
}

// A grant for somebody who is disabled is refused for that, and made when they are
// enabled again.
func TestGrantOfDisabledPerson(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.vault(t, nil)
		first, _ := x.grant(t, v)
		found, err := x.root.Auth().Token().LookupAccessorWithContext(t.Context(), x.accessor(t, first))
		if err != nil {
			t.Fatal(err)
		}
		person := "identity/entity/id/" + found.Data["entity_id"].(string)
		second := authoritytest.NewGrant("weather")
		second.Tenant, second.Principal = first.Tenant, first.Principal
		for _, disabled := range []bool{true, false} {
			if _, err := x.root.Logical().WriteWithContext(t.Context(), person, map[string]any{"disabled": disabled}); err != nil {
				t.Fatal(err)
			}
			_, err := v.CreateGrant(t.Context(), second)
			if disabled != (err != nil && protocol.CodeOf(err) == protocol.CodePermissionDenied && strings.Contains(err.Error(), "is disabled")) {
				t.Errorf("disabled=%t: %v", disabled, err)
			}
			if !disabled && err != nil {
				t.Error(err)
			}
		}
	})
}

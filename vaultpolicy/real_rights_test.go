//go:build linux

package vaultpolicy

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/secret"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// attempt is one request that must be refused.
type attempt struct {
	method, path string
	body         map[string]any
}

// try asks with a token.
func (x *site) try(t *testing.T, as secret.Value, a attempt) error {
	t.Helper()
	var err error
	switch a.method {
	case http.MethodGet:
		_, err = x.client.Read(t.Context(), as, a.path)
	case "LIST":
		_, err = x.client.List(t.Context(), as, a.path)
	case http.MethodDelete:
		err = x.client.Delete(t.Context(), as, a.path)
	default:
		_, err = x.client.Write(t.Context(), as, a.path, a.body)
	}
	return err
}

func (x *site) allRefused(t *testing.T, who string, as secret.Value, attempts map[string]attempt) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(attempts)) {
		err := x.try(t, as, attempts[what])
		if k := client.KindOf(err); k != client.Refused && k != client.Invalid {
			t.Errorf("%s, %s: %v (%q), must be refused", who, what, err, k)
		}
	}
}

// child is what a grant may make, changed in one way.
func child(policy string, change map[string]any, leave ...string) attempt {
	body := map[string]any{"type": "batch", "policies": policy, "ttl": actionTTL, "no_default_policy": true}
	maps.Copy(body, change)
	for _, k := range leave {
		delete(body, k)
	}
	return attempt{http.MethodPut, "auth/token/create", body}
}

// A grant's token makes the credential of one action and reads its own credentials.
// Everything else that the server offers is refused, and so it is for what it made.
func TestGrantMakesNothingElse(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.run(t, nil)
		g, sealed := x.grant(t, v)
		other, _ := x.grant(t, v)
		x.open(t, g.Tenant, "ungranted")
		o, err := v.open(t.Context(), authoritytest.Use(g, sealed, "weather"))
		if err != nil {
			t.Fatal(err)
		}
		n := v.names
		mine := policies.Credential{Tenant: g.Tenant, Name: "weather"}
		use := n.UsePolicy(mine)
		if _, err := v.action(t.Context(), o, mine); err != nil {
			t.Fatalf("the one thing that it may: %v", err)
		}
		makes := map[string]attempt{
			"a service child":          child(use, map[string]any{"type": "service"}),
			"a child of its own type":  child(use, nil, "type"),
			"a default child":          child(use, map[string]any{"type": "default"}),
			"an orphan":                child(use, map[string]any{"no_parent": true}),
			"by create-orphan":         {http.MethodPut, "auth/token/create-orphan", child(use, nil).body},
			"by the role":              {http.MethodPut, "auth/token/create/" + n.GrantRole(), child(use, nil).body},
			"by role_name":             child(use, map[string]any{"role_name": n.GrantRole()}),
			"with an id":               child(use, map[string]any{"id": "chosen-0123456789"}),
			"periodic":                 child(use, map[string]any{"period": "1h"}),
			"with its own end":         child(use, map[string]any{"explicit_max_ttl": "1h"}),
			"with uses":                child(use, map[string]any{"num_uses": 5}),
			"renewable":                child(use, map[string]any{"renewable": true}),
			"with metadata":            child(use, map[string]any{"meta": map[string]string{"a": "b"}}),
			"with a name":              child(use, map[string]any{"display_name": "x"}),
			"of another person":        child(use, map[string]any{"entity_alias": "user-" + other.Principal.String()}),
			"for an hour":              child(use, map[string]any{"ttl": "1h"}),
			"for as long as there is":  child(use, nil, "ttl"),
			"with the default policy":  child(use, map[string]any{"no_default_policy": false}),
			"with it by leaving it":    child(use, nil, "no_default_policy"),
			"of all its policies":      child(use, nil, "policies"),
			"of no policy":             child("", nil),
			"of the grants' policy":    child(n.GrantPolicy(), nil),
			"of root":                  child("root", nil),
			"of root behind its own":   child(use+",root", nil),
			"of default behind it":     child(use+",default", nil),
			"of another credential":    child(n.UsePolicy(policies.Credential{Tenant: g.Tenant, Name: "ungranted"}), nil),
			"of another's credential":  child(n.UsePolicy(policies.Credential{Tenant: other.Tenant, Name: "weather"}), nil),
			"of the broker's policy":   child(n.BrokerPolicy(), nil),
			"of policies in a list":    child(use, map[string]any{"policies": []string{use, n.GrantPolicy()}}),
			"of everything at once":    {http.MethodPut, "auth/token/create", map[string]any{}},
			"wrapped in a renewal":     {http.MethodPut, "auth/token/renew-self", map[string]any{"increment": "1000h"}},
			"a token of the accessor":  {http.MethodPut, "auth/token/renew-accessor", map[string]any{"accessor": x.accessor(t, other)}},
			"a role that makes others": {http.MethodPut, "auth/token/roles/mine", map[string]any{"orphan": true}},
		}
		x.allRefused(t, "the grant makes", o.token, makes)
		action, err := v.action(t.Context(), o, mine)
		if err != nil {
			t.Fatal(err)
		}
		x.allRefused(t, "the action's credential makes", action, makes)
		x.allRefused(t, "the action's credential makes", action, map[string]attempt{
			"what the grant may": child(use, nil), "its own end": {http.MethodPut, "auth/token/revoke-self", nil}})
		for who, token := range map[string]secret.Value{"the grant": o.token, "the action's credential": action} {
			x.allRefused(t, who, token, x.reaches(t, g, other))
			if _, err := x.client.Read(t.Context(), token, v.credentialPath("data", mine)); err != nil {
				t.Errorf("%s reads its own credential: %v", who, err)
			}
		}
	})
}

// reaches is what neither a grant nor what it makes may reach.
func (x *site) reaches(t *testing.T, g, other authority.Grant) map[string]attempt {
	n := x.cfg.names()
	key := func(c policies.Credential, kind string) string {
		return n.Credentials + "/" + kind + "/" + c.Tenant.String() + "/" + c.Name
	}
	mine, theirs := policies.Credential{Tenant: g.Tenant, Name: "weather"}, policies.Credential{Tenant: other.Tenant, Name: "weather"}
	get, put := http.MethodGet, http.MethodPut
	return map[string]attempt{
		"read another's credential": {get, key(theirs, "data"), nil},
		"read what was not granted": {get, key(policies.Credential{Tenant: g.Tenant, Name: "ungranted"}, "data"), nil},
		"write its own credential":  {put, key(mine, "data"), map[string]any{"data": map[string]any{"value": "mine-0123456789"}}},
		"delete its own credential": {http.MethodDelete, key(mine, "metadata"), nil},
		"list credentials":          {"LIST", n.Credentials + "/metadata/" + g.Tenant.String(), nil},
		"read the index":            {get, n.Grants + "/data/" + g.Principal.String() + "/" + g.ID.String(), nil},
		"list the index":            {"LIST", n.Grants + "/metadata", nil},
		"write the index":           {put, n.Grants + "/data/" + g.Principal.String() + "/" + g.ID.String(), map[string]any{"data": map[string]any{"state": "alive"}}},
		"seal":                      {put, n.Transit + "/encrypt/u-" + g.Principal.String(), map[string]any{"plaintext": "AAAA"}},
		"open":                      {put, n.Transit + "/decrypt/u-" + g.Principal.String(), map[string]any{"ciphertext": "vault:v1:AAAA"}},
		"sign a receipt":            {put, n.Transit + "/sign/" + n.ReceiptKey(), map[string]any{"input": "AAAA"}},
		"see its person":            {"LIST", "identity/entity/id", nil},
		"enable its person":         {put, "identity/entity/name/x", map[string]any{"disabled": false}},
		"see policies":              {"LIST", "sys/policies/acl", nil},
		"write a policy":            {put, "sys/policies/acl/" + n.GrantPolicy(), map[string]any{"policy": `path "*" { capabilities = ["sudo"] }`}},
		"see mounts":                {get, "sys/mounts", nil},
		"see what it may":           {put, "sys/capabilities-self", map[string]any{"paths": []string{"a"}}},
		"see leases":                {"LIST", "sys/leases/lookup/auth/token/create", nil},
		"see accessors":             {"LIST", "auth/token/accessors", nil},
		"look another's grant up":   {put, "auth/token/lookup-accessor", map[string]any{"accessor": x.accessor(t, other)}},
		"revoke another's grant":    {put, "auth/token/revoke-accessor", map[string]any{"accessor": x.accessor(t, other)}},
		"wrap something":            {put, "sys/wrapping/wrap", map[string]any{"a": "b"}},
		"keep something":            {put, "cubbyhole/x", map[string]any{"a": "b"}},
		"see the audit devices":     {get, "sys/audit", nil},
		"log in another way":        {put, "sys/auth/mine", map[string]any{"type": "userpass"}},
		"seal the server":           {put, "sys/seal", nil},
	}
}

// The broker's login makes grants and writes credentials. Directly it reads no
// credential but its routes' keys; it makes no other token, and writes no policy.
func TestBrokerReachesNothingElse(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.run(t, nil)
		g, sealed := x.grant(t, v)
		x.scope.Keys = nil // the credential is a tool's, not a route's
		x.setup(t)
		stranger := authoritytest.NewGrant().Tenant
		var own secret.Value
		if err := v.session.Do(t.Context(), func(_ context.Context, token secret.Value) error { own = token; return nil }); err != nil {
			t.Fatal(err)
		}
		n := v.names
		role := "auth/token/create/" + n.GrantRole()
		grant := func(change map[string]any) map[string]any {
			body := map[string]any{"policies": []string{n.GrantPolicy()}, "no_default_policy": true, "entity_alias": "user-x", "display_name": "grant-x"}
			maps.Copy(body, change)
			return body
		}
		get, put := http.MethodGet, http.MethodPut
		x.allRefused(t, "the broker", own, map[string]attempt{
			"reads a tool's credential":      {get, v.credentialPath("data", policies.Credential{Tenant: g.Tenant, Name: "weather"}), nil},
			"reads a stranger's":             {get, v.credentialPath("data", policies.Credential{Tenant: stranger, Name: "x"}), nil},
			"lists tenants":                  {"LIST", n.Credentials + "/metadata", nil},
			"undeletes":                      {put, v.credentialPath("undelete", policies.Credential{Tenant: g.Tenant, Name: "weather"}), map[string]any{"versions": []int{1}}},
			"changes the store":              {put, n.Credentials + "/config", map[string]any{"max_versions": 100}},
			"writes a policy":                {put, "sys/policies/acl/" + n.UsePolicy(policies.Credential{Tenant: g.Tenant, Name: "x"}), map[string]any{"policy": "# x"}},
			"writes its own policy":          {put, "sys/policies/acl/" + n.BrokerPolicy(), map[string]any{"policy": "# x"}},
			"reads its own policy":           {get, "sys/policies/acl/" + n.BrokerPolicy(), nil},
			"deletes a policy":               {http.MethodDelete, "sys/policies/acl/" + n.GrantPolicy(), nil},
			"changes the role":               {put, "auth/token/roles/" + n.GrantRole(), map[string]any{"allowed_policies": []string{"root"}}},
			"makes a child":                  {put, "auth/token/create", map[string]any{"policies": []string{n.BrokerPolicy()}}},
			"makes an orphan":                {put, "auth/token/create-orphan", map[string]any{}},
			"makes a grant of root":          {put, role, grant(map[string]any{"policies": []string{"root"}})},
			"makes a grant of itself":        {put, role, grant(map[string]any{"policies": []string{n.BrokerPolicy()}})},
			"makes a grant with an id":       {put, role, grant(map[string]any{"id": "chosen-0123456789"})},
			"makes a grant with a period":    {put, role, grant(map[string]any{"period": "10000h"})},
			"makes a grant of an admin":      {put, role, grant(map[string]any{"entity_alias": "admin"})},
			"makes a grant of another type":  {put, role, grant(map[string]any{"type": "batch"})},
			"makes a grant with default":     {put, role, grant(map[string]any{"no_default_policy": false})},
			"exports a key":                  {get, n.Transit + "/export/encryption-key/u-" + g.Principal.String(), nil},
			"deletes a key":                  {http.MethodDelete, n.Transit + "/keys/u-" + g.Principal.String(), nil},
			"makes a key that is exportable": {put, n.Transit + "/keys/u-x", map[string]any{"exportable": true}},
			"enables a person":               {put, "identity/entity/id/x", map[string]any{"disabled": false}},
			"finds persons":                  {"LIST", "identity/entity/id", nil},
			"lists accessors":                {"LIST", "auth/token/accessors", nil},
			"looks tokens up":                {put, "auth/token/lookup", map[string]any{"token": "x"}},
			"revokes by prefix":              {put, "sys/leases/revoke-prefix/auth/token/create", nil},
			"sees mounts":                    {get, "sys/mounts", nil},
			"sees audit devices":             {get, "sys/audit", nil},
			"makes its own secret id":        {put, "auth/" + x.cfg.Auth.Mount + "/role/" + x.cfg.Auth.Role + "/secret-id", nil},
		})
		// And the same login does its work.
		if _, err := v.Credentials(t.Context(), g.Tenant); err != nil {
			t.Error(err)
		}
		x.grant(t, v)
		x.brokerMay(t, v, own, g, sealed)
	})
}

// brokerMay is what the login alone is enough for, and so whoever steals it: it makes
// or opens a grant, reads with that, and looks up, renews and revokes any token whose
// accessor it learns. The operator's guide says so.
func (x *site) brokerMay(t *testing.T, v *Vault, own secret.Value, g authority.Grant, sealed []byte) {
	t.Helper()
	n := v.names
	mine := policies.Credential{Tenant: g.Tenant, Name: "weather"}
	reads := func(what string, token secret.Value) {
		t.Helper()
		a, err := x.client.Read(t.Context(), token, v.credentialPath("data", mine))
		if err != nil || client.Text(client.Map(a.Data["data"])[valueField]) != authoritytest.Value {
			t.Errorf("%s: %v", what, err)
		}
	}
	made, err := x.client.Write(t.Context(), own, "auth/token/create/"+n.GrantRole(), map[string]any{
		"policies": []string{n.GrantPolicy(), n.UsePolicy(mine)}, "no_default_policy": true,
		"entity_alias": "user-" + g.Principal.String(), "display_name": "grant-x",
	})
	if err != nil {
		t.Fatal(err)
	}
	reads("with a grant that it makes", made.Login.Token)
	text, ok := unpackSealed(sealed)
	if !ok {
		t.Fatal("the sealed grant has another form")
	}
	a, err := x.client.Write(t.Context(), own, n.Transit+"/decrypt/"+v.personKey(g.Principal), map[string]any{
		"ciphertext": text, "associated_data": bind(g.ID),
	})
	if err != nil {
		t.Fatal(err)
	}
	if client.Text(a.Data["plaintext"]) == "" {
		t.Error("no sealed grant was opened")
	}
	o, err := v.open(t.Context(), authoritytest.Use(g, sealed, "weather"))
	if err != nil {
		t.Fatal(err)
	}
	reads("with a grant that it opens", o.token)
	others, err := x.root.Auth().Token().CreateWithContext(t.Context(), &api.TokenCreateRequest{Policies: []string{"default"}, TTL: "1h"})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"lookup", "renew", "revoke"} {
		if _, err := x.client.Write(t.Context(), own, "auth/token/"+verb+"-accessor", map[string]any{"accessor": others.Auth.Accessor}); err != nil {
			t.Errorf("%s of another's token: %v", verb, err)
		}
	}
	if _, err := x.root.Auth().Token().LookupAccessorWithContext(t.Context(), others.Auth.Accessor); err == nil {
		t.Error("another's token is not revoked by its accessor")
	}
}

// Each right of the broker's login, taken away in turn, fails the feature that needs
// it, which names the right; and no grant ends by it.
func TestRightsTakenAway(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.run(t, nil)
		g, sealed := x.grant(t, v)
		n := v.names
		create := func() error { _, err := v.CreateGrant(t.Context(), fresh(g)); return err }
		for path, use := range map[string]func() error{
			"auth/token/create/" + n.GrantRole(): create,
			"sys/policies/acl/" + n.UseGlob():    create,
			n.Grants + "/data/+/+":               create,
			n.Transit + "/encrypt/u-*":           create,
			n.Transit + "/decrypt/u-*": func() error {
				v.openGrants.drop(g.ID)
				_, err := v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				return err
			},
			n.Credentials + "/data/+/+": func() error {
				return v.PutCredential(t.Context(), fresh(g).Tenant, "other", authoritytest.Seal(t, v, "other", authoritytest.Value))
			},
			n.Credentials + "/metadata/+/":  func() error { _, err := v.Credentials(t.Context(), g.Tenant); return err },
			n.Credentials + "/metadata/+/+": func() error { return v.DeleteCredential(t.Context(), g.Tenant, "none") },
		} {
			whole := n.Broker()
			at := strings.Index(whole, `path "`+path+`"`)
			if at < 0 {
				t.Fatalf("the policy has no %s", path)
			}
			end := at + strings.Index(whole[at:], "\n}\n") + 3
			x.putPolicy(t, n.BrokerPolicy(), whole[:at]+whole[end:])
			err := use()
			if head := strings.TrimRight(path, "+*/"); err == nil || !strings.Contains(err.Error(), head) || !strings.Contains(err.Error(), "bivouac vault check") {
				t.Errorf("without %s: %v", path, err)
			}
			x.putPolicy(t, n.BrokerPolicy(), whole)
			if err := use(); path != n.Credentials+"/metadata/+/+" && err != nil {
				t.Errorf("with %s again: %v", path, err)
			}
		}
		if _, err := v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather")); err != nil {
			t.Error("the grant", err)
		}
	})
}

// fresh is another grant of the same person.
func fresh(g authority.Grant) authority.Grant {
	f := authoritytest.NewGrant(g.Credentials...)
	f.Tenant, f.Principal = g.Tenant, g.Principal
	return f
}

func (x *site) putPolicy(t *testing.T, name, text string) {
	t.Helper()
	if err := x.root.Sys().PutPolicyWithContext(t.Context(), name, text); err != nil {
		t.Fatal(err)
	}
}

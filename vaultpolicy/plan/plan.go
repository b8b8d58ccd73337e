package plan

import (
	"slices"
	"time"

	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/policies"
)

// Plan is what the server must have, in the order in which it is made.
type Plan struct{ Items []Item }

// Wanted is what a plan is made of.
type Wanted struct {
	Names policies.Names
	// Login of the broker.
	Login Login
	// Credentials that grants may reach.
	Credentials []policies.Opened
	// SSH are the engines of SSH that setup makes, with their key and role.
	SSH []*issued.From
	// Routes are the keys that the operator bound to model routes and registries.
	Routes []policies.Credential
	// Period of a grant's token: a grant whose broker was away for longer is over.
	Period time.Duration
	// TokensPerSecond that each address may make at each node: so these servers count a
	// rate limit. It holds for whoever makes tokens there, not for the broker alone. Zero:
	// no limit.
	TokensPerSecond int
}

// Login is the broker's, as the server must know it.
type Login struct {
	login.Auth
	// Audiences and Subject that a JWT must have, and the claim that names it.
	Audiences []string
	Subject   string
	UserClaim string
	// Issuer (PEM) of the broker's certificate, and the common name in it. The
	// certificate alone is not enough: some releases take another one with the same
	// serial number for it (CVE-2025-6037).
	Issuer, CommonName string
}

// LoginTTL is how long the broker's token lives without being renewed.
const LoginTTL = time.Hour

// New makes the plan.
func New(w Wanted) Plan {
	var p Plan
	p.engines(w)
	for _, f := range w.SSH {
		p.ssh(f)
	}
	p.rules(w)
	p.login(w)
	if w.TokensPerSecond > 0 {
		p.add(Item{
			Kind: "rate limit", Name: w.Names.Prefix + "-mint", Path: "sys/quotas/rate-limit/" + w.Names.Prefix + "-mint",
			For:  "an address from which tokens are made without end can keep the server from its other work",
			Want: map[string]any{"path": "auth/token/create", "rate": w.TokensPerSecond, "interval": time.Second},
		})
	}
	return p
}

func (p *Plan) add(i Item) { p.Items = append(p.Items, i) }

func (p *Plan) engines(w Wanted) {
	mount := func(name, kind, why string, options map[string]any) {
		want := map[string]any{"type": kind}
		if options != nil {
			want["options"] = options
		}
		p.add(Item{
			Kind: "mount", Name: name, Path: "sys/mounts/" + name, ReadPath: "sys/mounts", Key: name + "/", For: why, Fixed: true,
			Want: want, Creates: map[string]any{"description": "Bivouac"},
		})
	}
	kv2 := map[string]any{"version": "2"}
	mount(w.Names.Grants, "kv", "no grant can be made or found", kv2)
	mount(w.Names.Credentials, "kv", "no credential can be stored or used", kv2)
	mount(w.Names.Transit, "transit", "no grant can be sealed or opened, and no receipt signed", nil)
	p.add(Item{
		Kind: "settings of", Name: w.Names.Credentials, Path: w.Names.Credentials + "/config",
		For:  "values that were replaced stay readable",
		Want: map[string]any{"max_versions": 1},
	})
	p.add(Item{
		Kind: "key", Name: w.Names.ReceiptKey(), Path: w.Names.Transit + "/keys/" + w.Names.ReceiptKey(), Fixed: true,
		For:  "receipts are signed by the broker's keyring instead",
		Want: map[string]any{"type": "ed25519"},
	})
}

func (p *Plan) rules(w Wanted) {
	policy := func(name, text, why string) {
		p.add(Item{Kind: "policy", Name: name, Path: "sys/policies/acl/" + name, For: why, Want: map[string]any{"policy": text}})
	}
	policy(w.Names.BrokerPolicy(), w.Names.Broker(), "the broker may do nothing")
	policy(w.Names.GrantPolicy(), w.Names.Grant(), "no grant can be used")
	policy(w.Names.RoutesPolicy(), w.Names.Routes(w.Routes), "the broker cannot read the keys of model routes and registries")
	for _, c := range w.Credentials {
		policy(w.Names.UsePolicy(c.Credential), w.Names.Use(c), "no grant of tenant "+c.Tenant.String()+" can use the credential "+c.Name)
	}
	p.add(Item{
		Kind: "token role", Name: w.Names.GrantRole(), Path: "auth/token/roles/" + w.Names.GrantRole(), For: "no grant can be made",
		Want: map[string]any{
			"orphan": true, "renewable": true, "token_type": "service", "token_period": w.Period, "token_no_default_policy": true,
			"allowed_policies": []string{w.Names.GrantPolicy()}, "allowed_policies_glob": []string{w.Names.UseGlob()},
			"allowed_entity_aliases": []string{"user-*"},
		},
	})
}

func (p *Plan) login(w Wanted) {
	l := w.Login
	held := []string{w.Names.BrokerPolicy(), w.Names.RoutesPolicy()}
	if l.Method == login.Token {
		p.add(Item{
			Kind: "token role", Name: w.Names.BrokerPolicy(), Path: "auth/token/roles/" + w.Names.BrokerPolicy(), For: "no token can be made for the broker",
			Want: map[string]any{
				"orphan": true, "renewable": true, "token_type": "service", "token_period": LoginTTL, "token_no_default_policy": true,
				"allowed_policies": held,
			},
		})
		return
	}
	p.add(Item{
		Kind: "auth method", Name: l.Mount, Path: "sys/auth/" + l.Mount, ReadPath: "sys/auth", Key: l.Mount + "/", Fixed: true,
		For: "the broker cannot log in", Want: map[string]any{"type": l.Method}, Creates: map[string]any{"description": "Bivouac"},
	})
	role := Item{
		Kind: "login role", Name: l.Role, For: "the broker cannot log in",
		Want: map[string]any{
			"token_policies": held, "token_no_default_policy": true, "token_type": "service",
			"token_ttl": LoginTTL, "token_max_ttl": 24 * LoginTTL,
		},
	}
	switch l.Method {
	case login.AppRole:
		role.Path = "auth/" + l.Mount + "/role/" + l.Role
		role.Want["bind_secret_id"] = true
	case login.JWT:
		role.Path = "auth/" + l.Mount + "/role/" + l.Role
		role.Want["role_type"], role.Want["user_claim"] = "jwt", l.UserClaim
		role.Want["bound_audiences"], role.Want["bound_subject"] = slices.Clone(l.Audiences), l.Subject
	case login.Cert:
		role.Path = "auth/" + l.Mount + "/certs/" + l.Role
		role.Want["certificate"], role.Want["allowed_common_names"] = l.Issuer, []string{l.CommonName}
	}
	p.add(role)
}

package broker

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"bivouac/server/broker/authority"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/oauth"
)

// OAuth2 makes access tokens of a credential (RFC 6749): what is stored under its name
// never leaves but to the token endpoint, and the token is what tools, MCP servers and
// routes get in its place.
type OAuth2 struct {
	// Name of the credential.
	Name string `hcl:"name,label"`
	// TokenURL is the token endpoint. What stands there is reached by no agent.
	TokenURL string `hcl:"token_url"`
	// Grant is "refresh_token" (the credential is a refresh token, which a person got by
	// authorising the client) or "client_credentials" (it is the client's secret).
	// Default "refresh_token".
	Grant string `hcl:"grant,optional"`
	// ClientID of this deployment at the authorization server.
	ClientID string `hcl:"client_id"`
	// ClientSecret names the credential with the client's secret, for "refresh_token";
	// absent: the client has none. It needs no grant: the operator bound it here.
	ClientSecret string `hcl:"client_secret,optional"`
	// ClientAuth is "basic" or "post" (id and secret in the body). Default "basic".
	ClientAuth string `hcl:"client_auth,optional"`
	// Scopes and Audience to ask for, with "client_credentials": those of a refresh token
	// are its own.
	Scopes   []string `hcl:"scopes,optional"`
	Audience string   `hcl:"audience,optional"`
	// AllowPrivate admits loopback and private addresses, and http.
	AllowPrivate bool `hcl:"allow_private,optional"`
	// CAFile holds certificates (PEM) to trust instead of the machine's.
	CAFile string    `hcl:"ca_file,optional"`
	Range  hcl.Range `hcl:",def_range"`
}

func (o OAuth2) withDefaults() OAuth2 {
	o.Grant, o.ClientAuth = cmp.Or(o.Grant, oauth.RefreshToken), cmp.Or(o.ClientAuth, "basic")
	return o
}

// oauth2 holds the blocks against everything else that the file says.
func (k *check) oauth2(c Config) {
	seen := map[string]bool{}
	for _, o := range c.OAuth2 {
		if seen[o.Name] {
			k.bad(o.Range, "oauth2 %q stands twice", o.Name)
		}
		seen[o.Name] = true
		k.err(o.Range, "oauth2", authority.CheckName(o.Name))
		k.token(o)
		stored, issues := c.binds(o.Name)
		switch {
		case issues:
			k.bad(o.Range, "oauth2 %q: an engine issues this credential, and what it issues is no refresh token", o.Name)
		case !stored:
			k.bad(o.Range, "oauth2 %q: no destination and no model uses this credential", o.Name)
		}
	}
	for _, o := range c.OAuth2 {
		if o.ClientSecret != "" && seen[o.ClientSecret] {
			k.bad(o.Range, "oauth2 %q: client_secret %q is a credential of OAuth itself: name one that is stored as it is", o.Name, o.ClientSecret)
		}
	}
}

func (k *check) token(o OAuth2) {
	_, err := egress.CheckBase(o.TokenURL, o.AllowPrivate)
	k.err(o.Range, "token_url", err)
	machine := o.Grant == oauth.ClientCredentials
	switch {
	case o.Grant != oauth.RefreshToken && !machine:
		k.bad(o.Range, "grant %q: use \"refresh_token\" or \"client_credentials\"", o.Grant)
	case machine && o.ClientSecret != "":
		k.bad(o.Range, "client_secret is for grant = \"refresh_token\": with \"client_credentials\" the credential itself is the secret")
	case !machine && (len(o.Scopes) > 0 || o.Audience != ""):
		k.bad(o.Range, "scopes and audience are for grant = \"client_credentials\": a refresh token has those that it was authorised for")
	}
	if o.ClientID == "" || strings.ContainsFunc(o.ClientID, func(r rune) bool { return r < ' ' || r > '~' }) {
		k.bad(o.Range, "client_id %q: say it as the authorization server gave it", o.ClientID)
	}
	if o.ClientAuth != "basic" && o.ClientAuth != "post" {
		k.bad(o.Range, "client_auth %q: use \"basic\" or \"post\"", o.ClientAuth)
	}
	if slices.ContainsFunc(o.Scopes, func(s string) bool {
		return s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
	}) {
		k.bad(o.Range, "scopes: each is one word")
	}
	if o.ClientSecret != "" {
		k.err(o.Range, "client_secret", authority.CheckName(o.ClientSecret))
	}
}

// binds says whether a credential is used, as a stored one, or as one that an engine
// issues.
func (c Config) binds(name string) (stored, issues bool) {
	for _, d := range c.Destinations {
		for _, cr := range d.Credentials {
			stored, issues = stored || cr.Name == name, issues || cr.Name == name && cr.From != nil
		}
	}
	return stored || slices.ContainsFunc(c.Models, func(m Model) bool { return m.Credential == name }), issues
}

func (c Config) openTokens(p Ports) (*oauth.Tokens, error) {
	var all []oauth.Config
	for _, o := range c.OAuth2 {
		base, err := egress.CheckBase(o.TokenURL, o.AllowPrivate)
		ca, err2 := c.readCA(o.CAFile)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		client, err := egress.NewClient(egress.Config{Name: "the authorization server of credential " + o.Name, Base: base, AllowPrivate: o.AllowPrivate, CA: ca, Network: p.Egress})
		if err != nil {
			return nil, err
		}
		all = append(all, oauth.Config{
			Name: o.Name, TokenURL: base.String(), Grant: o.Grant, ClientID: o.ClientID, Secret: o.ClientSecret,
			InBody: o.ClientAuth == "post", Scopes: o.Scopes, Audience: o.Audience, Client: client,
		})
	}
	return oauth.New(oauth.Params{Configs: all, Store: p.Authority, Elapsed: p.Elapsed, Log: p.Log}), nil
}

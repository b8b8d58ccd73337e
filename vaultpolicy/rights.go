package vaultpolicy

import (
	"context"
	"slices"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// right is something that the broker's login must be allowed, and what does not work
// without it.
type right struct {
	path         string // as asked of the server; no pattern
	capabilities []string
	without      string
}

// Somebody and something that nothing belongs to: a right is asked for with them
// where the policy has a pattern.
const (
	nobody = "prn_00000000000000000000000000"
	noID   = "grt_00000000000000000000000000"
	noOne  = "ten_00000000000000000000000000"
)

// rights of the broker's login: those of its policy, and of the keys that it reads.
// A test holds them against the policy.
func (c Config) rights(s Scope) []right {
	n := c.names()
	out := []right{
		{"auth/token/lookup-self", []string{"read"}, "the broker cannot tell a dead login from a revoked grant: nothing is looked up"},
		{"auth/token/renew-self", []string{"update"}, "the broker logs in anew instead of renewing, which leaves a token behind each time"},
		{"auth/token/revoke-self", []string{"update"}, "the token of a broker that was stopped lives on until its end"},
		{"sys/capabilities-self", []string{"update"}, "a right that is missing is not told from a grant that was revoked"},
		{"auth/token/create/" + n.GrantRole(), []string{"create", "update"}, "bivouac grant create fails"},
		{lookupPath, []string{"update"}, "a revoked grant is not seen, and after " + c.GraceText + " every grant is refused"},
		{"auth/token/renew-accessor", []string{"update"}, "grants end after " + c.PeriodText},
		{"auth/token/revoke-accessor", []string{"update"}, "bivouac revoke refuses a grant here, but its token lives on in the server"},
		{"identity/entity/id/" + noID, []string{"read"}, "a person who is disabled is not seen: their grants are refused only when they are used"},
		{"sys/policies/acl/" + n.Prefix + "-use-x", []string{"read"}, "bivouac grant create with a credential fails"},
		{n.Grants + "/metadata", []string{"list"}, "the broker does not know which grants there are"},
		{n.Grants + "/metadata/", []string{"list"}, "the broker does not know which grants there are"},
		{n.Grants + "/metadata/" + nobody + "/", []string{"list"}, "the broker does not know which grants there are"},
		{n.Grants + "/metadata/" + nobody + "/" + noID, []string{"read", "delete"}, "an entry that was deleted may be written again, and old ones are never forgotten"},
		{n.Grants + "/data/" + nobody + "/" + noID, []string{"create", "read", "update"}, "no grant is made, found or marked as revoked"},
		{n.Credentials + "/data/" + noOne + "/x", []string{"create", "update"}, "bivouac credential set fails"},
		{n.Credentials + "/metadata/" + noOne + "/", []string{"list"}, "bivouac credential list fails"},
		{n.Credentials + "/metadata/" + noOne + "/x", []string{"read", "delete"}, "bivouac credential list and delete fail"},
		{n.Transit + "/encrypt/u-" + nobody, []string{"create", "update"}, "no grant can be sealed: bivouac grant create fails"},
		{n.Transit + "/decrypt/u-" + nobody, []string{"update"}, "no grant can be opened: tools get no credential"},
		{n.Transit + "/sign/" + n.ReceiptKey(), []string{"update"}, "receipts are signed by the broker's keyring instead"},
		{n.Transit + "/keys/" + n.ReceiptKey(), []string{"read"}, "receipts are signed by the broker's keyring instead"},
	}
	for _, k := range c.keys(s) {
		out = append(out, right{n.Credentials + "/data/" + k.Tenant.String() + "/" + k.Name, []string{"read"},
			"routes, registries and MCP lists with the key " + k.Name + " do not work for tenant " + k.Tenant.String()})
	}
	return out
}

// keys that the broker reads with its own login.
func (c Config) keys(s Scope) []policies.Credential {
	out := slices.Clone(s.TenantKeys)
	for _, t := range c.Tenants {
		for _, name := range s.Keys {
			out = append(out, policies.Credential{Tenant: protocol.TenantID(t), Name: name})
		}
	}
	return out
}

// lacks asks the server which of some rights a token does not have.
func lacks(ctx context.Context, c *client.Client, token secret.Value, wanted []right) (missing []right, err error) {
	paths := map[string][]string{}
	for _, r := range wanted {
		paths[r.path] = append(paths[r.path], r.capabilities...)
	}
	lacking, err := c.Lacking(ctx, token, paths)
	for _, r := range wanted {
		if r.capabilities = lacking[r.path]; len(r.capabilities) > 0 {
			missing = append(missing, r)
		}
	}
	return missing, err
}

func (r right) String() string { return strings.Join(r.capabilities, " and ") + " on " + r.path }

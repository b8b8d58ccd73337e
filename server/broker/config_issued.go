package broker

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
)

// issued holds the credentials that engines issue against everything else that the
// file says of them.
func (k *check) issued(c Config) {
	names := issued.Named{}
	for _, d := range c.Destinations {
		for _, cr := range d.Credentials {
			if err := names.Add(cr.Name, cr.From); err != nil {
				k.bad(cr.Range, "%w", err)
			}
			if cr.From != nil {
				k.from(c, d, cr)
			}
		}
		for block, name := range map[string]string{"egress": d.Egress.credential(), "mcp": d.MCP.credential()} {
			if names[name] != nil {
				k.bad(d.Range, "%s: credential %q is issued under a grant, and here nobody gives one: name a credential that is stored", block, name)
			}
		}
	}
	for _, o := range c.OAuth2 {
		for _, name := range []string{o.Name, o.ClientSecret} {
			if names[name] != nil {
				k.bad(o.Range, "oauth2 %q: credential %q is issued by an engine, and a token is made of one that is stored", o.Name, name)
			}
		}
	}
	for _, m := range c.Models {
		if names[m.Credential] != nil {
			k.bad(m.Range, "credential %q is issued under a grant, and a model route has none: name a credential that is stored", m.Credential)
		}
	}
}

// from is one credential that is issued.
func (k *check) from(c Config, d Destination, cr Credential) {
	for _, p := range cr.From.Problems() {
		k.bad(cr.From.Range, "credential %q: %w", cr.Name, p)
	}
	if _, bound := cr.From.Binding(); d.MCP != nil && cr.From.Engine != issued.SSH && !bound {
		k.bad(cr.From.Range, "credential %q: an MCP server gets one value in Authorization: from %q with these fields is for http tools", cr.Name, cr.From.Engine)
	}
	if cr.From.Engine == issued.PKI && !strings.HasPrefix(d.URL, "https://") {
		k.bad(cr.From.Range, "credential %q: a client certificate needs a destination with https", cr.Name)
	}
	if c.Vault == nil {
		k.bad(cr.From.Range, "credential %q: from %q needs a vault block in this file: the keyring stores values and issues nothing", cr.Name, cr.From.Engine)
	}
	if err := cr.From.Apart(c.Vault.tenants()); err != nil && len(cr.From.Tenants) == 0 {
		k.bad(cr.From.Range, "credential %q: %w", cr.Name, err)
	}
	if cr.Header != "" || cr.Format != "" {
		k.bad(cr.Range, "credential %q: header and format are for a value that is stored: what %s issues has its own", cr.Name, cr.From.Engine)
	}
}

// tenants that the block names, as far as they are told here: everything else in it is
// for whoever reads it.
func (v *Vault) tenants() []string {
	if v == nil || v.Body == nil {
		return nil
	}
	content, _, _ := v.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "tenants"}}})
	if content == nil || content.Attributes["tenants"] == nil {
		return nil
	}
	var out []string
	if gohcl.DecodeExpression(content.Attributes["tenants"].Expr, nil, &out).HasErrors() {
		return nil // said by whoever reads it
	}
	return out
}

// isStored refuses a name that an engine issues: a value under it would never be used.
func (c Config) isStored(name string) error {
	if from := c.issued()[name]; from != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q is issued for each action by the %s (broker.hcl): nothing is stored under its name; grant it with: bivouac grant create --credential %s", name, from, name)
	}
	return nil
}

// issued are the credentials that an engine issues, by name.
func (c Config) issued() map[string]*issued.From {
	out := map[string]*issued.From{}
	for _, d := range c.Destinations {
		for _, cr := range d.Credentials {
			if cr.From != nil {
				out[cr.Name] = cr.From
			}
		}
	}
	return out
}

func (e *Egress) credential() string {
	if e == nil {
		return ""
	}
	return e.Credential
}

func (m *MCP) credential() string {
	if m == nil {
		return ""
	}
	return m.Credential
}

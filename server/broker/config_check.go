package broker

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/forward"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
)

// Validate lists every problem of a configuration that was made in code.
func (c Config) Validate() error {
	if p := c.withDefaults().problems("broker configuration"); len(p) > 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%w", errors.Join(p...))
	}
	return nil
}

var routeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,47}$`)

// check gathers problems of one file.
type check struct {
	file     string
	problems []error
}

func (k *check) bad(r hcl.Range, format string, args ...any) {
	k.problems = append(k.problems, fmt.Errorf("%s: %w", place(&r, k.file), fmt.Errorf(format, args...)))
}

func (k *check) err(r hcl.Range, what string, err error) {
	if err != nil {
		k.bad(r, "%s: %v", what, err)
	}
}

func (c Config) problems(filename string) []error {
	k := &check{file: filename}
	none := hcl.Range{}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		k.bad(none, "listen: %q is no host:port", c.Listen)
	}
	for _, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			k.bad(none, "servers: %q is no host:port", s)
		}
	}
	if c.Consul != nil && c.Paths != "" {
		k.bad(none, "paths = %q and a consul block both say who may reach what: take one of them out", c.Paths)
	}
	if !routeName.MatchString(c.Pool) {
		k.bad(none, "pool %q: lower-case letters, digits and hyphens", c.Pool)
	}
	seen := map[string]bool{}
	name := func(r hcl.Range, kind, name string) {
		if !routeName.MatchString(name) {
			k.bad(r, "%s %q: names have lower-case letters, digits and hyphens, at most 48", kind, name)
		}
		if seen[kind+name] {
			k.bad(r, "%s %q stands twice", kind, name)
		}
		seen[kind+name] = true
	}
	for _, m := range c.Models {
		name(m.Range, "model", m.Name)
		k.model(m)
	}
	for _, d := range c.Destinations {
		name(d.Range, "destination", d.Name)
		k.destination(d)
		if seen["model"+strippedModel(d.Name)] {
			k.bad(d.Range, "destination %q has the name that paths give to a model route: choose another", d.Name)
		}
	}
	k.issued(c)
	k.oauth2(c)
	k.caps(c)
	return k.problems
}

// strippedModel is the route that a destination's name would shadow.
func strippedModel(destination string) string {
	prefix := ModelDestination("")
	if len(destination) > len(prefix) && destination[:len(prefix)] == prefix {
		return destination[len(prefix):]
	}
	return " none"
}

func (k *check) model(m Model) {
	_, err := egress.CheckBase(m.BaseURL, m.AllowPrivate)
	k.err(m.Range, "base_url", err)
	if !provider.Known(m.Format) {
		k.bad(m.Range, "format %q is not known: use one of %s", m.Format, strings.Join(provider.Formats, ", "))
	}
	k.err(m.Range, "credential_header", secret.Binding{Header: m.CredentialHeader, Format: m.CredentialFormat}.Check())
	for field, text := range map[string]string{"first_timeout": m.FirstTimeout, "idle_timeout": m.IdleTimeout} {
		if d, err := time.ParseDuration(text); err != nil || d < time.Second || d > time.Hour {
			k.bad(m.Range, "%s %q: a duration from \"1s\" to \"1h\"", field, text)
		}
	}
	if m.Model == "" {
		k.bad(m.Range, "model is empty: name it as the provider does")
	}
	if m.Credential != "" {
		k.err(m.Range, "credential", authority.CheckName(m.Credential))
	}
	if m.CredentialTenant != "" {
		_, err := protocol.ParseID[protocol.TenantKind](m.CredentialTenant)
		k.err(m.Range, "credential_tenant", err)
	}
	if m.LimitField != "max_tokens" && m.LimitField != "max_completion_tokens" {
		k.bad(m.Range, `limit_field %q: "max_tokens" or "max_completion_tokens"`, m.LimitField)
	}
	if m.MaxOutputTokens < 1 || m.MaxOutputTokens > 1<<20 {
		k.bad(m.Range, "max_output_tokens %d must be 1 to %d", m.MaxOutputTokens, 1<<20)
	}
	if len(m.DataBoundaries) == 0 {
		k.bad(m.Range, "data_boundaries is empty: nothing could be sent there")
	}
	if p := m.Price; p != nil {
		for _, usd := range []*float64{&p.Input, &p.Output, p.CacheRead, p.CacheWrite} {
			if usd != nil && (*usd < 0 || *usd > 1e6) {
				k.bad(m.Range, "price: US dollars for a million tokens, from 0 to 1000000")
			}
		}
	}
}

func (k *check) destination(d Destination) {
	if d.SSH != nil {
		k.ssh(d)
	} else if d.MCP.local() == nil {
		_, err := egress.CheckBase(d.URL, d.AllowPrivate)
		k.err(d.Range, "url", err)
	}
	for _, m := range d.Methods {
		if !slices.Contains(gateway.Methods, m) {
			k.bad(d.Range, "methods: %q is none of %v", m, gateway.Methods)
		}
	}
	seen := map[string]bool{}
	for _, c := range d.Credentials {
		if seen[c.Name] {
			k.bad(c.Range, "credential %q stands twice", c.Name)
		}
		seen[c.Name] = true
		k.err(c.Range, "credential", authority.CheckName(c.Name))
		k.ofSSH(d, c)
		if c.From == nil {
			k.err(c.Range, fmt.Sprintf("credential %q", c.Name), gateway.Binding{Header: c.Header, Format: c.Format}.Check())
		}
	}
	if d.Egress != nil {
		k.egress(d)
	}
	if d.MCP != nil {
		k.mcp(d)
	}
	k.pages(d)
}

func (k *check) mcp(d Destination) {
	m := d.MCP
	if m.local() != nil {
		k.command(d)
	} else {
		k.ofCommands(d)
	}
	if d.Egress != nil || len(d.Methods) > 0 {
		k.bad(d.Range, "mcp: an MCP server takes tools of kind \"mcp\" alone: no egress block and no methods beside it")
	}
	if m.Credential != "" && !slices.ContainsFunc(d.Credentials, func(c Credential) bool { return c.Name == m.Credential }) {
		k.bad(d.Range, "mcp: credential %q has no block in destination %q", m.Credential, d.Name)
	}
	if t, err := time.ParseDuration(m.Timeout); err != nil || t < time.Second || t > gateway.MaxTimeout {
		k.bad(d.Range, "mcp: timeout %q: a duration from \"1s\" to %q", m.Timeout, gateway.MaxTimeout)
	}
	for _, n := range []struct {
		name     string
		is, most int
	}{{"max_answer_kib", m.MaxAnswerKiB, 64 << 10}, {"max_tools", m.MaxTools, 4096}, {"max_schema_kib", m.MaxSchemaKiB, 1 << 10}, {"max_schema_depth", m.MaxSchemaDepth, canonical.MaxDepth - 8}} {
		if n.is < 1 || n.is > n.most {
			k.bad(d.Range, "mcp: %s %d must be 1 to %d", n.name, n.is, n.most)
		}
	}
	for _, c := range d.Credentials {
		if strings.HasPrefix(strings.ToLower(c.Header), "mcp-") {
			k.bad(c.Range, "credential %q: the header %q belongs to MCP itself", c.Name, c.Header)
		}
	}
}

func (k *check) egress(d Destination) {
	e := d.Egress
	if !forward.Known(e.Protocol) {
		k.bad(d.Range, "egress: protocol %q is not known: use one of %s", e.Protocol, strings.Join(forward.Protocols(), ", "))
	}
	if len(d.DataBoundaries) == 0 {
		k.bad(d.Range, "egress: data_boundaries is empty: say whose turns may tell this registry what they look for")
	}
	if e.Credential != "" && !slices.ContainsFunc(d.Credentials, func(c Credential) bool { return c.Name == e.Credential }) {
		k.bad(d.Range, "egress: credential %q has no block in destination %q", e.Credential, d.Name)
	}
	if e.MaxMiBPerTurn < 1 || e.MaxMiBPerTurn > 1<<20 || e.MaxOpen < 1 || e.MaxOpen > 256 {
		k.bad(d.Range, "egress: max_mib_per_turn must be 1 to %d, and max_open 1 to 256", 1<<20)
	}
}

func (k *check) caps(c Config) {
	spend := func(r hcl.Range, v *float64) {
		if v != nil && (*v < 0 || *v > 1e9) {
			k.bad(r, "spend_usd_per_hour %v must be 0 to 1000000000", *v)
		}
	}
	spend(c.Caps.Range, c.Caps.SpendUSDPerHour)
	for _, t := range c.Caps.Tenant {
		spend(t.Range, t.SpendUSDPerHour)
		for _, name := range t.Models {
			if !slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == name }) {
				k.bad(t.Range, "tenant %q: there is no model %q", t.Name, name)
			}
		}
		for _, name := range t.Destinations {
			if !slices.ContainsFunc(c.Destinations, func(d Destination) bool { return d.Name == name }) {
				k.bad(t.Range, "tenant %q: there is no destination %q", t.Name, name)
			}
		}
	}
}

package vaultpolicy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/policies"
)

// File is what broker.hcl says of the server: its vault block, and which
// credentials the rest of it binds to tools and to routes.
type File struct {
	Config
	Scope Scope
}

// NamedTenant is a tenant that the file names, and where. Which there are, only a server of
// Bivouac knows.
type NamedTenant struct{ Tenant, Where string }

// NamedTenants are all that the vault block, what its server issues and its keys name.
func (f File) NamedTenants() (all []NamedTenant) {
	name := func(where string, tenants ...string) {
		for _, t := range tenants {
			all = append(all, NamedTenant{t, where})
		}
	}
	name("tenants of the vault block in broker.hcl", f.Tenants...)
	for _, credential := range slices.Sorted(maps.Keys(f.Scope.Issued)) {
		name("tenants of the credential "+credential+" in broker.hcl", f.Scope.Issued[credential].Tenants...)
	}
	for _, key := range f.Scope.TenantKeys {
		name("credential_tenant of the key "+key.Name+" in broker.hcl", key.Tenant.String())
	}
	return all
}

// ErrNoVault is a broker.hcl without a vault block: its grants are in the keyring.
var ErrNoVault = errors.New("there is no vault block")

// ReadFile reads broker.hcl for whoever sets the server up or examines it. Files that
// it names need not be on this machine, because an admin may sit elsewhere. What else
// stands in it is the broker's to judge.
func ReadFile(path string, getenv func(string) string) (File, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return File{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration cannot be read: %w", err)
	}
	if err := filemode.Policy(path); err != nil {
		return File{}, err
	}
	return parseFile(src, path, getenv)
}

// The shape of broker.hcl as far as credentials go; everything else is remain.
type brokerFile struct {
	Models []struct {
		Name       string   `hcl:"name,label"`
		Credential string   `hcl:"credential,optional"`
		Tenant     string   `hcl:"credential_tenant,optional"`
		Remain     hcl.Body `hcl:",remain"`
	} `hcl:"model,block"`
	Destinations []struct {
		Name        string      `hcl:"name,label"`
		Credentials []namedOnly `hcl:"credential,block"`
		Egress      *boundKey   `hcl:"egress,block"`
		MCP         *boundKey   `hcl:"mcp,block"`
		Remain      hcl.Body    `hcl:",remain"`
	} `hcl:"destination,block"`
	OAuth2 []struct {
		Name   string   `hcl:"name,label"`
		Secret string   `hcl:"client_secret,optional"`
		Remain hcl.Body `hcl:",remain"`
	} `hcl:"oauth2,block"`
	Vault *struct {
		Body hcl.Body `hcl:",remain"`
	} `hcl:"vault,block"`
	Remain hcl.Body `hcl:",remain"`
}

type namedOnly struct {
	Name   string       `hcl:"name,label"`
	From   *issued.From `hcl:"from,block"`
	Remain hcl.Body     `hcl:",remain"`
}

// boundKey is a credential that the operator bound, which needs no grant.
type boundKey struct {
	Credential string   `hcl:"credential,optional"`
	Remain     hcl.Body `hcl:",remain"`
}

func parseFile(src []byte, path string, getenv func(string) string) (File, error) {
	parsed, diags := hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	var b brokerFile
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(parsed.Body, nil, &b)...)
	}
	var problems []error
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			problems = append(problems, fmt.Errorf("%s: %s: %s", place(d.Subject, path), d.Summary, d.Detail))
		}
	}
	if len(problems) > 0 {
		return File{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration is refused:\n%w", errors.Join(problems...))
	}
	if b.Vault == nil {
		return File{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%s: %w", path, ErrNoVault)
	}
	c, err := decode(b.Vault.Body, filepath.Dir(path), getenv, true)
	if err != nil {
		return File{}, err
	}
	scope, err := b.scope(path, c)
	return File{Config: c, Scope: scope}, err
}

// apart refuses a name that two tenants would share, unless the block says so itself.
func (c Config) apart(from *issued.From) error {
	if len(from.Tenants) > 0 {
		return nil
	}
	return from.Apart(c.Tenants)
}

func place(r *hcl.Range, path string) string {
	if r == nil {
		return path
	}
	return fmt.Sprintf("%s:%d", path, r.Start.Line)
}

// scope is what may be reached: tools' credentials under grants, routes' keys by the
// broker itself. A destination's credential may be both.
func (b brokerFile) scope(path string, c Config) (s Scope, err error) {
	s.Issued = map[string]*issued.From{}
	names := issued.Named{}
	used, keys := map[string]bool{}, map[string]bool{}
	var problems []error
	note := func(in map[string]bool, to *[]string, name string) {
		if name == "" || in[name] {
			return
		}
		in[name] = true
		if err := authority.CheckName(name); err != nil {
			problems = append(problems, err)
		}
		*to = append(*to, name)
	}
	for _, m := range b.Models {
		if m.Tenant == "" || m.Credential == "" {
			note(keys, &s.Keys, m.Credential)
			continue
		}
		tenant, err := protocol.ParseID[protocol.TenantKind](m.Tenant)
		problems = append(problems, err, authority.CheckName(m.Credential))
		s.TenantKeys = append(s.TenantKeys, policies.Credential{Tenant: tenant, Name: m.Credential})
	}
	for _, o := range b.OAuth2 {
		note(keys, &s.Keys, o.Secret)
	}
	for _, d := range b.Destinations {
		for _, cr := range d.Credentials {
			note(used, &s.Credentials, cr.Name)
			from := cr.From.WithDefaults()
			problems = append(problems, names.Add(cr.Name, from))
			if from == nil {
				continue
			}
			s.Issued[cr.Name] = from
			for _, p := range append(from.Problems(), c.own(from), c.apart(from)) {
				if p != nil {
					problems = append(problems, fmt.Errorf("%s: credential %q: %w", place(&from.Range, path), cr.Name, p))
				}
			}
		}
		for _, k := range []*boundKey{d.Egress, d.MCP} {
			if k != nil {
				note(keys, &s.Keys, k.Credential)
			}
		}
	}
	if err := errors.Join(problems...); err != nil {
		return Scope{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration is refused:\n%w", err)
	}
	return s, nil
}

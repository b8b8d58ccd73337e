package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy"
	"bivouac/vaultpolicy/client"
)

// Server is a running Vault or OpenBao.
type Server struct {
	Address, CAFile, RootToken string
	// AuditFile wakes the broker; empty: it polls alone.
	AuditFile string
	// Database is the DSN of one in which an engine of the server makes users; empty:
	// its engines issue nothing.
	Database string
}

// toolKey is the credential that grants of a site may use.
const toolKey = "weather"

// Site is a server that an admin has set up for the broker of one tenant, as the
// operator's guide says, and that admin's hands.
type Site struct {
	tenant protocol.TenantID
	file   vaultpolicy.File
	client *client.Client
	root   secret.Value
	grants []string // what each may use
	issues bool     // it has engines that make credentials
}

// Role of the broker's login, and of grants, in a site's server.
const (
	brokerRole = "auth/approle/role/bivouac-broker"
	grantRole  = "bivouac-grant"
)

// siteFile is broker.hcl as far as the server is concerned.
const siteFile = `
model "main" {
  credential = %q
}
destination "weather" {
  credential %q {}
}
vault {
  address = %q
  ca_file = %q
  tenants = [%q]
  auth "approle" {
    role_id_file   = "role-id"
    secret_id_file = "secret-id"
  }
%s}
`

// NewSite sets a server up; dir has what the broker's login reads. The server may
// have been set up for others before.
func NewSite(ctx context.Context, dir string, s Server, tenant protocol.TenantID) (*Site, error) {
	audit := ""
	if s.AuditFile != "" {
		audit = fmt.Sprintf("  audit {\n    file = %q\n  }\n", s.AuditFile)
	}
	name := filepath.Join(dir, "site.hcl")
	text := fmt.Appendf(nil, siteFile, RouteKey, toolKey, s.Address, s.CAFile, tenant, audit)
	if s.Database != "" {
		text = append(text, issuedFile...)
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		return nil, err
	}
	x := &Site{tenant: tenant, grants: []string{toolKey}, issues: s.Database != ""}
	var err error
	if x.file, err = vaultpolicy.ReadFile(name, func(string) string { return "" }); err != nil {
		return nil, err
	}
	if x.root, err = secret.New(s.RootToken); err != nil {
		return nil, err
	}
	if x.client, err = x.file.Client(); err != nil {
		return nil, err
	}
	if s.Database != "" {
		if err := x.engines(ctx, s.Database); err != nil {
			return nil, err
		}
	}
	return x, errors.Join(x.setUp(ctx), x.login(ctx, dir))
}

func (x *Site) setUp(ctx context.Context) error {
	plan, err := x.file.Plan(x.file.Scope)
	if err != nil {
		return err
	}
	d, err := plan.Diff(ctx, x.client, x.root)
	if err != nil {
		return err
	}
	return d.Apply(ctx, x.client, x.root, nil)
}

// login makes the two files with which the broker logs in.
func (x *Site) login(ctx context.Context, dir string) error {
	role, err := x.client.Read(ctx, x.root, brokerRole+"/role-id")
	if err != nil {
		return err
	}
	id, err := x.client.Write(ctx, x.root, brokerRole+"/secret-id", nil)
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"role-id": client.Text(role.Data["role_id"]), "secret-id": client.Text(id.Data["secret_id"])} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Close the admin's connections.
func (x *Site) Close() { x.client.Close() }

// Adapter is a broker's to the server; whoever has it runs it.
func (x *Site) Adapter(trust vaultpolicy.Trust) (*vaultpolicy.Vault, error) {
	return vaultpolicy.New(vaultpolicy.Params{Config: x.file.Config, Trust: trust, Log: slog.New(slog.DiscardHandler)})
}

// Grant is one that was made at a site.
type Grant struct {
	authority.Grant
	Sealed   []byte
	Accessor string // of its token
}

// Use of the grant's credential.
func (g Grant) Use() authority.Use {
	return authority.Use{Grant: g.ID, Sealed: g.Sealed, Tenant: g.Tenant, Principal: g.Principal, Agent: g.Agent, Credential: toolKey}
}

// grant of a person.
func (x *Site) grant(ctx context.Context, at broker.Authority, of protocol.PrincipalID) (g Grant, err error) {
	g.Grant = authority.Grant{ID: newID[protocol.GrantKind](), Tenant: x.tenant, Principal: of, Agent: Agent, Credentials: x.grants}
	if g.Sealed, err = at.CreateGrant(ctx, g.Grant); err != nil {
		return g, err
	}
	e, err := x.client.Read(ctx, x.root, "bivouac-grants/data/"+g.Principal.String()+"/"+g.ID.String())
	g.Accessor = client.Text(client.Map(e.Data["data"])["accessor"])
	return g, err
}

// eachHas grants, as somebody with some agents has.
const eachHas = 10

// Many makes grants, some of them at the same time, and stores what they may use.
func (x *Site) Many(ctx context.Context, at broker.Authority, n, atOnce int) ([]Grant, error) {
	if err := store(ctx, at, x.tenant, toolKey, "a-credential-of-the-measurement"); err != nil {
		return nil, err
	}
	out, people := make([]Grant, n), make([]protocol.PrincipalID, n/eachHas+1)
	for i := range people {
		people[i] = newID[protocol.PrincipalKind]()
	}
	makes, ctx := errgroup.WithContext(ctx)
	makes.SetLimit(atOnce)
	for i := range out {
		makes.Go(func() (err error) {
			out[i], err = x.grant(ctx, at, people[i/eachHas])
			return err
		})
	}
	return out, makes.Wait()
}

// Revoke the grant's token as an admin does, and say when the server had answered.
func (x *Site) Revoke(ctx context.Context, g Grant) (time.Time, error) {
	_, err := x.client.Write(ctx, x.root, "auth/token/revoke-accessor", map[string]any{"accessor": g.Accessor})
	return time.Now(), err
}

// Count what stands in the server: tokens with their leases, and persons.
func (x *Site) Count(ctx context.Context) (tokens, persons int, err error) {
	count := func(paths ...string) (n int) {
		for _, path := range paths {
			names, failed := x.client.List(ctx, x.root, path)
			if failed != nil && client.KindOf(failed) != client.Absent {
				err = errors.Join(err, failed)
			}
			n += len(names)
		}
		return n
	}
	const leases = "sys/leases/lookup/"
	tokens = count("auth/token/accessors/", leases+"auth/token/create/", leases+"auth/token/create/"+grantRole+"/", leases+"auth/approle/login/")
	if x.issues {
		tokens += count(leases+usersFrom.Path()+"/", "bench-pki/certs/")
	}
	persons = count("identity/entity/id/", "identity/entity-alias/id/", "identity/group/id/")
	return tokens, persons, err
}

// On is the holder of a rig's grants that a site's server is; it sets the server up.
func On(s Server, made func(*Site)) Holder {
	return func(ctx context.Context, keys *keyring.Keyring, tenant protocol.TenantID) (broker.Authority, error) {
		dir, err := os.MkdirTemp(filepath.Dir(s.CAFile), "site-")
		if err != nil {
			return nil, err
		}
		x, err := NewSite(ctx, dir, s, tenant)
		if err != nil {
			return nil, err
		}
		made(x)
		return x.Adapter(keys)
	}
}

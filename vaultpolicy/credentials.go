package vaultpolicy

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// valueField of a credential's entry holds it.
const valueField = "value"

func (v *Vault) credentialPath(kind string, c policies.Credential) string {
	return v.names.Credentials + "/" + kind + "/" + c.Tenant.String() + "/" + c.Name
}

// Recipient to which credentials are sealed: the keyring's.
func (v *Vault) Recipient() (recipient, statement string) { return v.trust.Recipient() }

// PutCredential stores what the command line sealed. The broker cannot read it back,
// unless it is a route's key.
func (v *Vault) PutCredential(ctx context.Context, tenant protocol.TenantID, name string, sealed []byte) error {
	value, err := v.trust.OpenCredential(tenant, name, sealed)
	if err != nil {
		return err
	}
	_, err = v.write(ctx, "store credentials", v.credentialPath("data", policies.Credential{Tenant: tenant, Name: name}),
		map[string]any{"data": map[string]any{valueField: value.Reveal()}})
	return err
}

// Credentials of a tenant by name, never with their values.
func (v *Vault) Credentials(ctx context.Context, tenant protocol.TenantID) ([]authority.Credential, error) {
	names, err := v.listing(ctx, "list credentials", v.names.Credentials+"/metadata/"+tenant.String()+"/")
	if err != nil {
		return nil, err
	}
	out := make([]authority.Credential, len(names))
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(parallel)
	for i, name := range names {
		if authority.CheckName(name) != nil {
			continue // somebody else's entry
		}
		reads.Go(func() error {
			c, _, err := v.credential(ctx, policies.Credential{Tenant: tenant, Name: name})
			out[i] = c
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(c authority.Credential) bool { return c.Name == "" })
	slices.SortFunc(out, func(a, b authority.Credential) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// credential without its value; none where its newest version is deleted.
func (v *Vault) credential(ctx context.Context, c policies.Credential) (authority.Credential, bool, error) {
	n, err := v.newest(ctx, c)
	if err != nil || !n.readable {
		return authority.Credential{}, false, err
	}
	return authority.Credential{Name: c.Name, UpdatedAt: n.made}, true, nil
}

// newestVersion of a credential, as the server lists it. The number of one that was
// deleted is still the newest.
type newestVersion struct {
	number   int64 // zero: none was ever written
	readable bool  // neither deleted nor destroyed
	made     time.Time
}

func (v *Vault) newest(ctx context.Context, c policies.Credential) (n newestVersion, err error) {
	a, err := v.read(ctx, "list credentials", v.credentialPath("metadata", c))
	if client.KindOf(err) == client.Absent {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	n.number = client.Number(a.Data["current_version"])
	version, ok := client.Map(a.Data["versions"])[number(a.Data["current_version"])]
	m := client.Map(version)
	// A store that deletes by age says beforehand when.
	deleted := client.Text(m["deletion_time"]) != "" && !client.Time(m["deletion_time"]).After(time.Now())
	n.readable, n.made = ok && !client.Flag(m["destroyed"]) && !deleted, client.Time(m["created_time"])
	return n, nil
}

// DeleteCredential forgets one, with every version of it.
func (v *Vault) DeleteCredential(ctx context.Context, tenant protocol.TenantID, name string) error {
	if err := authority.CheckName(name); err != nil {
		return err
	}
	c := policies.Credential{Tenant: tenant, Name: name}
	_, found, err := v.credential(ctx, c)
	if err != nil {
		return err
	}
	if err := v.delete(ctx, "delete credentials", v.credentialPath("metadata", c)); err != nil {
		return err
	}
	if !found {
		return protocol.Errorf(protocol.CodeNotFound, "the tenant has no credential %q", name)
	}
	return nil
}

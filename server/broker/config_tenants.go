package broker

import (
	"bivouac/server/broker/protocol/brokerv1"
)

// NamedTenants are the tenants that the file names, by id or by name, and where. Which
// there are a server alone knows.
func (c Config) NamedTenants() (all []*brokerv1.NamedTenant) {
	name := func(where string, tenants ...string) {
		for _, t := range tenants {
			if t != "" {
				all = append(all, &brokerv1.NamedTenant{Tenant: t, Where: where})
			}
		}
	}
	name("tenants of the vault block in broker.hcl", c.Vault.tenants()...)
	for _, d := range c.Destinations {
		for _, cr := range d.Credentials {
			if cr.From != nil {
				name("tenants of the credential "+cr.Name+" in broker.hcl", cr.From.Tenants...)
			}
		}
	}
	for _, m := range c.Models {
		name("credential_tenant of the model "+m.Name+" in broker.hcl", m.CredentialTenant)
	}
	if c.Caps == nil {
		return all
	}
	name("tenants of the caps block in broker.hcl", c.Caps.Tenants...)
	for _, t := range c.Caps.Tenant {
		name("a tenant block of caps in broker.hcl", t.Name)
	}
	return all
}

package keyring

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// ReplaceCredential puts a value in the place of the very one that is stored, durably
// and at once. Another one that was stored since stays.
func (k *Keyring) ReplaceCredential(_ context.Context, tenant protocol.TenantID, name string, was, is secret.Value) error {
	return k.update(func(c *content) error {
		for i, s := range c.Credentials {
			switch {
			case s.Tenant != tenant || s.Name != name:
				continue
			case is.Equal(s.Value): // it was done before, and the answer lost
				return nil
			case !was.Equal(s.Value):
				return protocol.Errorf(protocol.CodeConflict, "the credential %q was stored anew meanwhile", name)
			}
			c.Credentials[i].Value, c.Credentials[i].UpdatedAt = is.Reveal(), now()
			return nil
		}
		return protocol.Errorf(protocol.CodeNotFound, "the tenant has no credential %q", name)
	})
}

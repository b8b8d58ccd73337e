package keyring

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
)

// revokedTTL is how long a revoked grant stays listed. Forgetting it later is
// safe: a sealed grant that is not listed does not open.
const revokedTTL = 90 * 24 * time.Hour

var grantContext = []byte("bivouac grant v1")

// CreateGrant lists a grant and returns it sealed. The same grant again is the
// same answer; another one under its id is a conflict.
func (k *Keyring) CreateGrant(_ context.Context, g authority.Grant) ([]byte, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	g.CreatedAt, g.RevokedAt = now(), time.Time{}
	made := listed{Grant: g}
	err := k.update(func(c *content) error {
		if i := indexGrant(c.Grants, g.ID); i >= 0 {
			if !c.Grants[i].SameAs(g) {
				return protocol.Errorf(protocol.CodeConflict, "grant %s exists with other content", g.ID)
			}
			if !c.Grants[i].RevokedAt.IsZero() {
				return wasRevoked(g.ID)
			}
			made = c.Grants[i]
			return nil
		}
		old := now().Add(-revokedTTL)
		c.Grants = slices.DeleteFunc(c.Grants, func(l listed) bool { return !l.RevokedAt.IsZero() && l.RevokedAt.Before(old) })
		c.Grants = append(c.Grants, made)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return k.sealGrant(made.Grant, made.Part)
}

func wasRevoked(id protocol.GrantID) error {
	return protocol.Errorf(protocol.CodeConflict, "grant %s was revoked: make a new one", id)
}

// part is what is inside of a sealed grant.
type part struct {
	authority.Grant
	Part authority.Rotation `json:"part,omitempty"`
}

func (k *Keyring) sealGrant(g authority.Grant, of authority.Rotation) ([]byte, error) {
	plain, err := json.Marshal(part{g, of})
	if err != nil {
		return nil, err
	}
	return k.grants.Seal(nil, nil, plain, grantContext), nil
}

func indexGrant(all []listed, id protocol.GrantID) int {
	return slices.IndexFunc(all, func(l listed) bool { return l.ID == id })
}

// Grants of a tenant, oldest first, revoked ones too.
func (k *Keyring) Grants(_ context.Context, tenant protocol.TenantID) ([]authority.Grant, error) {
	var out []authority.Grant
	for _, g := range k.content.Load().Grants {
		if g.Tenant == tenant {
			out = append(out, g.Grant)
		}
	}
	return out, nil
}

// RevokeGrant makes the grant unusable, durably and at once. INV-13. Repeating
// it answers the same.
func (k *Keyring) RevokeGrant(_ context.Context, id protocol.GrantID) (authority.Grant, error) {
	var out authority.Grant
	old := k.content.Load()
	if i, known := old.byGrant[id]; !known {
		return out, protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
	} else if out = old.Grants[i].Grant; !out.RevokedAt.IsZero() {
		return out, nil
	}
	err := k.update(func(c *content) error {
		i := indexGrant(c.Grants, id)
		if i < 0 {
			return protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
		}
		if c.Grants[i].RevokedAt.IsZero() {
			c.Grants[i].RevokedAt = now()
		}
		out = c.Grants[i].Grant
		return nil
	})
	return out, err
}

// Run tells of the grants that were revoked before. Nobody changes the keyring
// behind this broker's back: it holds the lock.
func (k *Keyring) Run(ctx context.Context, ended func(authority.Ended)) error {
	for _, g := range k.content.Load().Grants {
		if !g.RevokedAt.IsZero() {
			ended(authority.Ended{Grant: g.ID, At: g.RevokedAt, How: "it was revoked at the broker"})
		}
	}
	<-ctx.Done()
	return nil
}

// Alive says whether a listed grant may still be used.
func (k *Keyring) Alive(_ context.Context, id protocol.GrantID) error {
	_, err := k.content.Load().grant(id)
	return err
}

// Mint hands out the one credential of one request. The sealed grant and the
// list must agree, so that neither a stolen list nor an old ciphertext is enough.
func (k *Keyring) Mint(_ context.Context, u authority.Use) (secret.Value, error) {
	plain, err := k.grants.Open(nil, nil, u.Sealed, grantContext)
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodePermissionDenied, "the sealed grant was not made by this broker")
	}
	var sealed part
	if err := json.Unmarshal(plain, &sealed); err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodePermissionDenied, "the sealed grant cannot be read")
	}
	if err := sealed.Allows(u); err != nil {
		return secret.Value{}, err
	}
	c := k.content.Load()
	listed, err := c.grant(sealed.ID)
	if err != nil {
		return secret.Value{}, err
	}
	if err := listed.Allows(u); err != nil {
		return secret.Value{}, err
	}
	if !listed.counts(sealed.Part) {
		return secret.Value{}, authority.Rotated(sealed.ID)
	}
	return c.value(u.Tenant, u.Credential)
}

// RouteKey is the key of a model route, which the operator bound to the route in
// broker.hcl: no grant is asked.
func (k *Keyring) RouteKey(_ context.Context, tenant protocol.TenantID, name string) (secret.Value, error) {
	return k.content.Load().value(tenant, name)
}

func (c *content) value(tenant protocol.TenantID, name string) (secret.Value, error) {
	v, ok := c.credential(tenant, name)
	if !ok {
		return v, protocol.Errorf(protocol.CodeFailedPrecondition, "the tenant has no credential %q: store it with: bivouac credential set %s", name, name)
	}
	return v, nil
}

// Recipient to which credentials are sealed, and the root's word for it.
func (k *Keyring) Recipient() (recipient, statement string) {
	return k.seal.Recipient().String(), k.statement
}

// PutCredential opens what the command line sealed: {"name": …, "value": …}. The
// server in between has seen ciphertext only.
func (k *Keyring) PutCredential(_ context.Context, tenant protocol.TenantID, name string, sealed []byte) error {
	v, err := k.OpenCredential(tenant, name, sealed)
	if err != nil {
		return err
	}
	return k.update(func(c *content) error {
		put := storedCredential{tenant, name, v.Reveal(), now()}
		c.Credentials = slices.DeleteFunc(c.Credentials, func(s storedCredential) bool { return s.Tenant == tenant && s.Name == name })
		c.Credentials = append(c.Credentials, put)
		return nil
	})
}

// OpenCredential opens what was sealed to the recipient, for whoever stores it.
// What was sealed under one name or tenant does not open under another.
func (k *Keyring) OpenCredential(tenant protocol.TenantID, name string, sealed []byte) (secret.Value, error) {
	refused := func(format string, args ...any) (secret.Value, error) {
		return secret.Value{}, protocol.Errorf(protocol.CodeInvalidArgument, format, args...)
	}
	if err := authority.CheckName(name); err != nil {
		return secret.Value{}, err
	}
	if tenant == "" || len(sealed) > maxSealed {
		return refused("a credential needs a tenant and at most %d sealed bytes", maxSealed)
	}
	plain, err := decrypt(sealed, k.seal, maxSealed)
	if err != nil {
		return refused("the credential was not sealed for this broker: fetch the recipient anew and seal again")
	}
	defer clear(plain)
	var said struct{ Name, Value, Tenant string }
	if err := json.Unmarshal(plain, &said); err != nil {
		return refused("the sealed credential cannot be read")
	}
	if said.Name != name || (said.Tenant != "" && said.Tenant != tenant.String()) {
		return refused("the credential was sealed under another name or tenant")
	}
	return secret.New(said.Value)
}

// Credentials of a tenant by name, never with their values.
func (k *Keyring) Credentials(_ context.Context, tenant protocol.TenantID) ([]authority.Credential, error) {
	var out []authority.Credential
	for _, s := range k.content.Load().Credentials {
		if s.Tenant == tenant {
			out = append(out, authority.Credential{Name: s.Name, UpdatedAt: s.UpdatedAt})
		}
	}
	slices.SortFunc(out, func(a, b authority.Credential) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// DeleteCredential forgets one.
func (k *Keyring) DeleteCredential(_ context.Context, tenant protocol.TenantID, name string) error {
	return k.update(func(c *content) error {
		before := len(c.Credentials)
		c.Credentials = slices.DeleteFunc(c.Credentials, func(s storedCredential) bool { return s.Tenant == tenant && s.Name == name })
		if len(c.Credentials) == before {
			return protocol.Errorf(protocol.CodeNotFound, "the tenant has no credential %q", name)
		}
		return nil
	})
}

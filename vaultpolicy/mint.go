package vaultpolicy

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// actionTTL is the life of an action's credential. The policy of grants allows no
// other.
const actionTTL = "60s"

// Mint makes the credential of one action and reads with it. Nothing is kept: the
// server decides about every one. INV-13.
func (v *Vault) Mint(ctx context.Context, u authority.Use) (secret.Value, error) {
	c := policies.Credential{Tenant: u.Tenant, Name: u.Credential}
	action, err := v.actionOf(ctx, u, c)
	if err != nil {
		return secret.Value{}, err
	}
	return v.value(ctx, action, c, func(err error) error { return v.refused(ctx, u, c, err) })
}

// actionOf a use: the batch token with which its one request is made, where the grant
// allows it and lives.
func (v *Vault) actionOf(ctx context.Context, u authority.Use, c policies.Credential) (secret.Value, error) {
	o, err := v.openHeld(ctx, u)
	if err != nil {
		return secret.Value{}, err
	}
	if err := o.grant.Allows(u); err != nil {
		return secret.Value{}, err
	}
	if err := v.listed(ctx, o.grant); err != nil {
		return secret.Value{}, err
	}
	if err := v.counts(ctx, o); err != nil {
		return secret.Value{}, err
	}
	return v.action(ctx, o, c)
}

// refused says what a refusal of an action's token is about: its grant ended, or a
// right is missing.
func (v *Vault) refused(ctx context.Context, u authority.Use, c policies.Credential, err error) error {
	id := u.Grant
	if e := v.recheck(ctx, id); e != nil {
		return e
	}
	if o, e := v.open(ctx, u); e == nil {
		if e := v.counts(ctx, o); e != nil { // it was renewed in this moment
			return e
		}
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"grant %s lives, but the server refuses it the credential %q: the policy %s is missing or changed (%w); bivouac vault check says so, bivouac vault setup --apply mends it", id, c.Name, v.names.UsePolicy(c), err)
}

// listed refuses a grant that ended. One that is not in memory is looked for in the
// index at once: another broker may have made it.
func (v *Vault) listed(ctx context.Context, g authority.Grant) error {
	e, ok := v.table.get(g.ID)
	if !ok {
		r, found, err := v.readRecord(ctx, g.Principal, g.ID)
		switch {
		case err != nil:
			return err
		case !found:
			return denied("grant %s is not known to this broker", g.ID)
		case r.spoiled:
			return spoiled(g.ID)
		}
		v.adopt(ctx, r)
		if e, ok = v.table.get(g.ID); !ok {
			return denied("grant %s is not known to this broker", g.ID)
		}
	}
	if !e.grant.RevokedAt.IsZero() {
		return ended(&e)
	}
	if !e.grant.SameAs(g) {
		return denied("grant %s is listed with other content than it was sealed with", g.ID)
	}
	return nil
}

// action makes the batch child that one request uses.
func (v *Vault) action(ctx context.Context, o opened, c policies.Credential) (secret.Value, error) {
	a, err := v.client.Write(ctx, o.token, "auth/token/create", map[string]any{
		// One name as text: in a list, the policy of grants could not hold it against its own.
		"type": "batch", "policies": v.names.UsePolicy(c), "ttl": actionTTL, "no_default_policy": true,
	})
	if err == nil && a.Login.Token.IsZero() {
		err = v.client.Strange("write", "auth/token/create")
	}
	switch client.KindOf(err) {
	case client.Refused, client.Invalid:
		if e := v.recheck(ctx, o.grant.ID); e != nil {
			return secret.Value{}, e
		}
		if e := v.counts(ctx, o); e != nil { // it was renewed in this moment
			return secret.Value{}, e
		}
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition,
			"grant %s lives, but the server makes no credential for it: the policy %s is missing or changed, or the grant was made without %s (%w); bivouac vault check says so, bivouac vault setup --apply mends it", o.grant.ID, v.names.GrantPolicy(), v.names.UsePolicy(c), err)
	}
	return a.Login.Token, err
}

// recheck asks the server about a grant whose token was refused, and is the refusal
// where it ended.
func (v *Vault) recheck(ctx context.Context, id protocol.GrantID) error {
	e, ok := v.table.get(id)
	if !ok {
		return denied("grant %s is not known to this broker", id)
	}
	if err := v.session.Prove(ctx); err != nil { // who refused is not known
		return err
	}
	v.examine(ctx, e, newPersons(), nil)
	if e, ok = v.table.get(id); !ok || !e.grant.RevokedAt.IsZero() {
		return ended(&e)
	}
	v.named.add(named{token: true, again: quickRounds}, id)
	return nil
}

// RouteKey is the key of a model route, which the operator bound to the route in
// broker.hcl: the broker's own login reads it.
func (v *Vault) RouteKey(ctx context.Context, tenant protocol.TenantID, name string) (value secret.Value, err error) {
	if err := authority.CheckName(name); err != nil {
		return secret.Value{}, err
	}
	c := policies.Credential{Tenant: tenant, Name: name}
	err = v.session.Do(ctx, func(ctx context.Context, token secret.Value) error {
		value, err = v.value(ctx, token, c, func(err error) error { return err })
		return err
	})
	if client.KindOf(err) == client.Refused {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition,
			"the broker may not read the key %q of tenant %s: the policy %s does not name it (%w); name the tenant in the vault block of broker.hcl, and run: bivouac vault setup --apply", name, tenant, v.names.RoutesPolicy(), err)
	}
	return value, err
}

// value reads a credential with a token. refused says what a refusal is.
func (v *Vault) value(ctx context.Context, as secret.Value, c policies.Credential, refused func(error) error) (secret.Value, error) {
	a, err := v.client.Read(ctx, as, v.credentialPath("data", c))
	switch client.KindOf(err) {
	case client.Absent:
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the tenant has no credential %q: store it with: bivouac credential set %s", c.Name, c.Name)
	case client.Refused:
		return secret.Value{}, refused(err)
	}
	if err != nil {
		return secret.Value{}, err
	}
	value, err := secret.New(client.Text(client.Map(a.Data["data"])[valueField]))
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q cannot be used as it is stored in the server: its field %q: %w; store it with: bivouac credential set %s", c.Name, valueField, err, c.Name)
	}
	v.versions.note(c, value, versionOf(a))
	return value, nil
}

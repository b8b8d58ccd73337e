package broker

import (
	"context"
	"errors"
	"net/http"

	"bivouac/edge/protocol"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
)

// sendable is what goes out for a stored value: the value itself, or the access token
// that it is good for. What it was made of is hidden from answers too. INV-17.
func (b *Broker) sendable(ctx context.Context, tenant protocol.TenantID, name string, stored secret.Value) (secret.Value, error) {
	if !b.tokens.Makes(name) || stored.IsZero() {
		return stored, nil
	}
	a, err := b.tokens.Access(ctx, tenant, name, stored)
	if err != nil {
		return secret.Value{}, err
	}
	for _, v := range a.Hidden {
		b.retired.use(tenant, name, v)
	}
	return a.Token, nil
}

// routeValue is what goes out for a credential that the operator bound, and what else
// an answer is redacted of.
func (b *Broker) routeValue(ctx context.Context, tenant protocol.TenantID, name string) (v secret.Value, before []secret.Value, err error) {
	stored, err := b.ports.Authority.RouteKey(ctx, tenant, name)
	if err == nil {
		v, err = b.sendable(ctx, tenant, name, stored)
	}
	if err != nil {
		return secret.Value{}, nil, err
	}
	return v, b.retired.use(tenant, name, v), nil
}

// renewal gives another token in the place of one that an upstream refused, under the
// same grant, which is asked again; nil where the credential makes none.
func (b *Broker) renewal(r *request, refused secret.Value) func(context.Context) (secret.Value, []secret.Value, error) {
	name := r.tool.GetCredential()
	if name == "" || !b.tokens.Makes(name) {
		return nil
	}
	return func(ctx context.Context) (secret.Value, []secret.Value, error) {
		b.tokens.Refused(r.claims.Tenant, name, refused)
		c, err := b.mint(ctx, r)
		if err != nil {
			return secret.Value{}, nil, err
		}
		return c.Value, b.retired.use(r.claims.Tenant, name, c.Value), nil
	}
}

// refusedToken notes the status with which an upstream took a credential.
func (b *Broker) refusedToken(tenant protocol.TenantID, name string, v secret.Value, status int) {
	if status == http.StatusUnauthorized && name != "" {
		b.tokens.Refused(tenant, name, v)
	}
}

// refusedKey notes that a provider refused the key of a call.
func (b *Broker) refusedKey(r *request, c *modelCall, err error) {
	var f *provider.Failure
	if errors.As(err, &f) && f.Stage == provider.Refused {
		b.refusedToken(c.route.keyOwner(r.claims.Tenant), c.route.cfg.Credential, c.call.Key, f.Status)
	}
}

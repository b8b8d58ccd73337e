package api

import (
	"context"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

type principals struct{ Config }

// AddPrincipal makes a principal and its token; only the hash of the token
// stays here.
func (s principals) AddPrincipal(ctx context.Context, r *apiv1.AddPrincipalRequest) (*apiv1.AddPrincipalResponse, error) {
	token := NewToken()
	p, tenant, err := s.Engine.AddPrincipal(ctx, callerOf(ctx), engine.NewPrincipal{
		Tenant: r.GetTenant(), Name: r.GetName(), Kind: r.GetKind(), Admin: r.GetAdmin(), TokenHash: token.Hash()})
	if err != nil {
		return nil, err
	}
	return &apiv1.AddPrincipalResponse{Principal: principalOut(p, tenant), Token: token.Reveal()}, nil
}

func (s principals) ListPrincipals(ctx context.Context, _ *apiv1.ListPrincipalsRequest) (*apiv1.ListPrincipalsResponse, error) {
	var list []policy.Principal
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) (err error) {
		list, err = tx.Principals()
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListPrincipalsResponse{}
	for _, p := range list {
		out.Principals = append(out.Principals, principalOut(p, loginOf(ctx).tenant))
	}
	return out, nil
}

func (s principals) DisablePrincipal(ctx context.Context, r *apiv1.DisablePrincipalRequest) (*apiv1.DisablePrincipalResponse, error) {
	id, err := protocol.ParseID[protocol.PrincipalKind](r.GetPrincipalId())
	if err != nil {
		return nil, err
	}
	p, err := s.Engine.DisablePrincipal(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &apiv1.DisablePrincipalResponse{Principal: principalOut(p, loginOf(ctx).tenant)}, nil
}

func (s principals) WhoAmI(ctx context.Context, _ *apiv1.WhoAmIRequest) (*apiv1.WhoAmIResponse, error) {
	l := loginOf(ctx)
	out := &apiv1.WhoAmIResponse{Principal: principalOut(l.principal, l.tenant), ServerVersion: s.Version}
	if root, err := s.Root(); err == nil {
		out.RootFingerprint = identity.Fingerprint(root)
	}
	return out, nil
}

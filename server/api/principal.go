package api

import (
	"context"
	"crypto/rand"
	"regexp"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/policy"
	"bivouac/server/store"
)

var (
	principalName = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,62}$`)
	tenantName    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)
)

type principals struct{ Config }

// AddPrincipal makes a principal and its token; only the hash of the token
// stays here.
func (s principals) AddPrincipal(ctx context.Context, r *apiv1.AddPrincipalRequest) (*apiv1.AddPrincipalResponse, error) {
	if err := requireAdmin(ctx, "add principals"); err != nil {
		return nil, err
	}
	l := loginOf(ctx)
	np := NewPrincipal{Tenant: l.tenant.Name, Name: r.GetName(), Kind: r.GetKind(), Admin: r.GetAdmin(), Token: NewToken()}
	caller := l.caller()
	if r.GetTenant() != "" && r.GetTenant() != l.tenant.Name {
		if !l.principal.Operator {
			return nil, protocol.Errorf(protocol.CodePermissionDenied,
				"%s may add principals to %s alone: only the operator that bivouac-server bootstrap made may name another tenant", l.principal.Name, l.tenant.Name)
		}
		np.Tenant = r.GetTenant()
		caller = store.AsOperator("principal add by " + l.principal.ID.String())
	}
	p, tenant, err := AddPrincipal(ctx, s.Store, caller, np)
	if err != nil {
		return nil, err
	}
	return &apiv1.AddPrincipalResponse{Principal: principalOut(p, tenant), Token: np.Token.Reveal()}, nil
}

// NewPrincipal is a principal to be made.
type NewPrincipal struct {
	Tenant string
	Name   string
	Kind   string // "user" or "service"; empty: "user"
	Admin  bool
	// Operator may also make tenants; only bootstrap makes one.
	Operator bool
	Token    Token
}

func (n *NewPrincipal) check() error {
	if n.Kind == "" {
		n.Kind = "user"
	}
	switch {
	case !principalName.MatchString(n.Name):
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"a principal's name has 1 to 63 lower-case letters, digits and . _ @ -, and begins with a letter or digit; %q is none", n.Name)
	case !tenantName.MatchString(n.Tenant):
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"a tenant's name has 1 to 31 lower-case letters, digits and hyphens, and begins with a letter or digit; %q is none", n.Tenant)
	case n.Kind != "user" && n.Kind != "service":
		return protocol.Errorf(protocol.CodeInvalidArgument, `kind %q is unknown: it is "user" or "service"`, n.Kind)
	}
	return nil
}

// AddPrincipal stores a principal with the hash of its token. A principal caller adds to
// its own tenant; an operator's tenant is made when it is absent.
func AddPrincipal(ctx context.Context, s *store.Store, c store.Caller, n NewPrincipal) (p policy.Principal, t policy.Tenant, err error) {
	if err := n.check(); err != nil {
		return p, t, err
	}
	id := protocol.NewID[protocol.PrincipalKind](time.Now(), rand.Reader)
	err = s.Update(ctx, c, func(tx *store.Tx) error {
		t = policy.Tenant{ID: c.Tenant(), Name: n.Tenant}
		if c.Internal() {
			var err error
			if t, err = tx.EnsureTenant(n.Tenant); err != nil {
				return err
			}
		}
		p = policy.Principal{
			ID: id, Tenant: t.ID, Name: n.Name, Kind: n.Kind, Admin: n.Admin, Operator: n.Operator,
			TokenHash: n.Token.Hash(), CreatedAt: tx.Now,
		}
		return tx.InsertPrincipal(p)
	})
	return p, t, err
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
	if err := requireAdmin(ctx, "disable principals"); err != nil {
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

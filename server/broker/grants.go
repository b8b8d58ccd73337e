package broker

import (
	"context"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
)

// revokeWait bounds how long a revocation waits for flows to end. They are
// cancelled at once; a handler that does not return by then is reported.
const revokeWait = 10 * time.Second

// authorityService is the Authority port over the wire, for servers.
type authorityService struct{ *Broker }

func (s authorityService) CreateGrant(ctx context.Context, in *brokerv1.CreateGrantRequest) (*brokerv1.CreateGrantResponse, error) {
	g := authority.Grant{Agent: in.GetAgent(), Credentials: in.GetCredentials()}
	var err error
	if g.ID, err = protocol.ParseID[protocol.GrantKind](in.GetGrantId()); err != nil {
		return nil, err
	}
	if g.Tenant, err = protocol.ParseID[protocol.TenantKind](in.GetTenantId()); err != nil {
		return nil, err
	}
	if g.Principal, err = protocol.ParseID[protocol.PrincipalKind](in.GetPrincipalId()); err != nil {
		return nil, err
	}
	sealed, err := s.ports.Authority.CreateGrant(ctx, g)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "grant created", "grant", g.ID, "tenant", g.Tenant, "agent", g.Agent, "credentials", g.Credentials)
	return &brokerv1.CreateGrantResponse{Sealed: sealed}, nil
}

func (s authorityService) ListGrants(ctx context.Context, in *brokerv1.ListGrantsRequest) (*brokerv1.ListGrantsResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	list, err := s.ports.Authority.Grants(ctx, tenant)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.ListGrantsResponse{}
	for _, g := range list {
		row := &brokerv1.Grant{
			GrantId: g.ID.String(), TenantId: g.Tenant.String(), PrincipalId: g.Principal.String(), Agent: g.Agent,
			Credentials: g.Credentials, CreatedUs: g.CreatedAt.UnixMicro(),
		}
		if !g.RevokedAt.IsZero() {
			row.RevokedUs = g.RevokedAt.UnixMicro()
		}
		out.Grants = append(out.Grants, row)
	}
	return out, nil
}

// RevokeGrant refuses the next mint, closes the flows and answers when none is
// left. INV-13.
func (s authorityService) RevokeGrant(ctx context.Context, in *brokerv1.RevokeGrantRequest) (*brokerv1.RevokeGrantResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](in.GetGrantId())
	if err != nil {
		return nil, err
	}
	g, err := s.ports.Authority.RevokeGrant(ctx, id)
	out := &brokerv1.RevokeGrantResponse{}
	if err != nil {
		if protocol.CodeOf(s.ports.Authority.Alive(ctx, id)) != protocol.CodePermissionDenied {
			return nil, err
		}
		// It is refused here from now on; only where it is held it may live.
		g.RevokedAt, out.Pending = time.Now(), err.Error()
		s.debts.owe(id, err)
	}
	s.ended.add(authority.Ended{Grant: id, At: g.RevokedAt, How: "it was revoked at the broker"})
	under := func(r *request) bool { return r.claims.Grant == id }
	closed, _ := s.flows.judge(func(r *request) error {
		if under(r) {
			return refusedBy(ByAuthority, denied("the grant was revoked"))
		}
		return nil
	})
	out.RevokedUs, out.FlowsClosed = g.RevokedAt.UnixMicro(), int32(closed)
	ctx, cancel := context.WithTimeout(ctx, revokeWait)
	defer cancel()
	for {
		n, last, changed := s.flows.count(under, id)
		if !last.IsZero() {
			out.LastAdmittedUs = last.UnixMicro()
		}
		if n == 0 {
			out.FlowsZeroUs = time.Now().UnixMicro()
			s.log.InfoContext(ctx, "grant revoked", "grant", id, "flows_closed", closed, "pending", out.GetPending())
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, protocol.Errorf(protocol.CodeUnavailable, "the grant is revoked, but %d flows under it have not ended yet; ask again", n)
		}
	}
}

func (s authorityService) PutCredential(ctx context.Context, in *brokerv1.PutCredentialRequest) (*brokerv1.PutCredentialResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	if err := s.cfg.isStored(in.GetName()); err != nil {
		return nil, err
	}
	s.retire(ctx, tenant, in.GetName())
	if err := s.ports.Authority.PutCredential(ctx, tenant, in.GetName(), in.GetSealed()); err != nil {
		return nil, err
	}
	s.keyless.stored(s.routes, tenant, in.GetName())
	s.tokens.Stored(tenant, in.GetName())
	s.log.InfoContext(ctx, "credential stored", "tenant", tenant, "name", in.GetName())
	return &brokerv1.PutCredentialResponse{}, nil
}

func (s authorityService) ListCredentials(ctx context.Context, in *brokerv1.ListCredentialsRequest) (*brokerv1.ListCredentialsResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	list, err := s.ports.Authority.Credentials(ctx, tenant)
	if err != nil {
		return nil, err
	}
	out := &brokerv1.ListCredentialsResponse{}
	for _, c := range list {
		out.Credentials = append(out.Credentials, &brokerv1.Credential{Name: c.Name, UpdatedUs: c.UpdatedAt.UnixMicro(), UsedBy: s.usedBy(c.Name)})
	}
	for name, from := range s.cfg.issued() {
		if from.For(tenant) { // it is set for each action, and so at no time
			out.Credentials = append(out.Credentials, &brokerv1.Credential{Name: name, UsedBy: append(s.usedBy(name), "from "+from.String())})
		}
	}
	slices.SortFunc(out.Credentials, func(a, b *brokerv1.Credential) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// usedBy names what the broker's file lets use a credential.
func (b *Broker) usedBy(name string) (out []string) {
	for _, m := range b.cfg.Models {
		if m.Credential == name {
			out = append(out, "model "+m.Name)
		}
	}
	for _, d := range b.cfg.Destinations {
		if slices.ContainsFunc(d.Credentials, func(c Credential) bool { return c.Name == name }) {
			out = append(out, "destination "+d.Name)
		}
	}
	return out
}

func (s authorityService) DeleteCredential(ctx context.Context, in *brokerv1.DeleteCredentialRequest) (*brokerv1.DeleteCredentialResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	s.retire(ctx, tenant, in.GetName())
	if err := s.ports.Authority.DeleteCredential(ctx, tenant, in.GetName()); err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "credential deleted", "tenant", tenant, "name", in.GetName())
	return &brokerv1.DeleteCredentialResponse{}, nil
}

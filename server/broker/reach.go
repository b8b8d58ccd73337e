package broker

import (
	"context"
	"errors"
	"slices"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/forward"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// Reach says what an agent could reach now: the questions of admission that need
// no capability. It admits nothing: every request is asked all of them again.
func (s brokerService) Reach(ctx context.Context, in *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	asking := func() *request {
		return &request{claims: capability.Claims{Tenant: tenant, TenantName: in.GetTenantName(), Agent: in.GetAgent(), DataBoundary: in.GetDataBoundary()}}
	}
	out := &brokerv1.ReachResponse{}
	for _, route := range in.GetModels() {
		r := asking()
		r.model = route
		out.Models = append(out.Models, s.said(r, s.reaches(ctx, r, s.credentialOfRoute)))
	}
	seen := s.lookers()
	defer seen.close(ctx)
	for _, tool := range in.GetTools() {
		r := asking()
		r.tool = tool
		out.Tools = append(out.Tools, s.said(r, s.reaches(ctx, r, func(ctx context.Context, r *request) error {
			if err := s.toolAsBound(ctx, r); err != nil {
				return err
			}
			return seen.stillOffered(ctx, r)
		})))
	}
	for _, name := range in.GetEgress() {
		r := asking()
		r.egress = name
		said := s.said(r, s.reaches(ctx, r, s.egressAsBound))
		if d := s.destinations[name]; d != nil && d.packages != nil {
			said.Protocol, said.Verbs, said.Url = d.packages.Protocol(), forward.Verbs(d.packages.Protocol()), d.packages.Base()
		}
		out.Egress = append(out.Egress, said)
	}
	return out, nil
}

func (b *Broker) reaches(ctx context.Context, r *request, last func(context.Context, *request) error) error {
	for _, q := range []question{{ByCap, b.checkCaps}, {ByPath, b.checkPath}, {ByBoundary, b.checkBoundary}, {ByPolicy, last}} {
		if err := q.ask(ctx, r); err != nil {
			var said *reachError
			if errors.As(err, &said) {
				return err
			}
			return &reachError{q.by, err}
		}
	}
	return nil
}

// toolAsBound holds a tool against its destination, and asks for its credential.
func (b *Broker) toolAsBound(ctx context.Context, r *request) error {
	out := b.destinations[r.tool.GetDestination()]
	if err := out.admits(r.tool); err != nil {
		return err
	}
	name := r.tool.GetCredential()
	if from := out.issued[name]; from != nil {
		return b.issuer.Opened(ctx, r.claims.Tenant, name, from)
	}
	if name != "" {
		return b.stored(ctx, r.claims.Tenant, name)
	}
	return nil
}

// stored asks whether the tenant has a credential. Its value is a grant's to read, and
// where the authority is strict this broker could not.
func (b *Broker) stored(ctx context.Context, tenant protocol.TenantID, name string) error {
	all, err := b.ports.Authority.Credentials(ctx, tenant)
	if err != nil || slices.ContainsFunc(all, func(c authority.Credential) bool { return c.Name == name }) {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the tenant has no credential %q: store it with: bivouac credential set %s", name, name)
}

// egressAsBound asks whether sandboxed code may read from a destination, and for
// the credential that the operator bound to it.
func (b *Broker) egressAsBound(ctx context.Context, r *request) error {
	out := b.destinations[r.egress]
	if out.packages == nil {
		return denied("destination %s is not for sandboxed code: it needs an egress block in broker.hcl", r.egress)
	}
	if out.packages.Credential() == "" {
		return nil
	}
	_, err := b.ports.Authority.RouteKey(ctx, r.claims.Tenant, out.packages.Credential())
	return err
}

// said adds to an answer the path entry that decides, also where something else
// says no.
func (b *Broker) said(r *request, err error) *brokerv1.Reach {
	out := reach(err)
	if destination, err := b.pathDestination(r); err == nil {
		out.Intention = b.ports.Paths.Decide(consul.SourceName(r.claims.TenantName, r.claims.Agent), destination, nil).Reason
	}
	return out
}

// credentialOfRoute asks for the key of a model route, and for its price.
func (b *Broker) credentialOfRoute(ctx context.Context, r *request) error {
	rt := b.routes[r.model]
	if _, err := rt.price.most(1, 1); err != nil {
		return err
	}
	if rt.cfg.Credential == "" {
		return nil
	}
	_, err := b.ports.Authority.RouteKey(ctx, rt.keyOwner(r.claims.Tenant), rt.cfg.Credential)
	return err
}

// reachError is a no with its kind.
type reachError struct {
	by  Refusal
	err error
}

func (e *reachError) Error() string { return e.err.Error() }
func (e *reachError) Unwrap() error { return e.err }

func reach(err error) *brokerv1.Reach {
	if err == nil {
		return &brokerv1.Reach{Admitted: true}
	}
	out := &brokerv1.Reach{Code: string(protocol.CodeOf(err)), Reason: err.Error()}
	var e *reachError
	if errors.As(err, &e) {
		out.By = string(e.by)
	}
	return out
}

package broker

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"bivouac/consul"
	"bivouac/consul/refused"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// request is one thing that somebody asks under a capability.
type request struct {
	peer   identity.Peer
	caller *caller // nil: no service of Consul's calls
	token  string
	// what is asked: a model route, an http tool with its action, or the name of a
	// destination that sandboxed code reads from.
	model     string
	egress    string
	tool      *brokerv1.HttpTool
	action    string
	arguments string
	// command that is to run on a host, as it is quoted there; empty elsewhere.
	command string

	// claims once the capability is verified; guarded by the flow registry.
	claims capability.Claims
	known  bool
	// wire is the HTTP request that this becomes, once it is prepared. Until then
	// paths are asked whether any request could be allowed.
	wire atomic.Pointer[consul.Request]
}

// destination that is asked for; empty for a model route.
func (r *request) destination() string {
	if r.egress != "" {
		return r.egress
	}
	return r.tool.GetDestination()
}

// admit is every check, in order, of every request. The first that fails is the
// answer. Budget comes after it, where the cost is known.
func (b *Broker) admit(ctx context.Context, fl *flow) error {
	for _, c := range []question{
		{"", b.checkFeed},                // fresh, or nothing new
		{ByAuthority, b.checkCapability}, // signature, audience, presenter's key, expiry by feed time
		{"", b.checkDeadline},            // the turn's own end
		{ByAuthority, b.checkFloors},     // grant, runner, principal, instance, session, turn, attempt
		{ByAuthority, b.checkGrant},      // listed and not revoked
		{ByCap, b.checkCaps},             // the tenant is served, and may reach this
		{ByPolicy, b.checkSubject},       // exactly what the capability names
		{ByPath, b.checkPath},            // the intention
		{ByBoundary, b.checkBoundary},    // the data may go there
	} {
		if err := c.run(ctx, fl.req); err != nil {
			return err
		}
		if fl.req.claims.ID != "" && !fl.req.known {
			b.flows.claimed(fl, fl.req.claims)
		}
	}
	return b.flows.admit(ctx, fl, time.Now())
}

// still is what an open flow must keep passing. Time bounds admission, not
// flows: an admitted flow lives while feed, caller, floors, grant, caps and path are good.
func (b *Broker) still(r *request) error {
	ctx := context.Background() // nothing below waits
	if err := b.feed.Check(b.cfg.Authority); err != nil {
		return err
	}
	if err := b.checkCaller(r.caller, true); err != nil {
		return err
	}
	for _, c := range []question{{ByAuthority, b.checkFloors}, {ByAuthority, b.checkGrant}, {ByCap, b.checkCaps}, {ByPath, b.checkOpenPath}} {
		if err := c.run(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// repeat is what must still hold before an admitted request goes out once more:
// what flows must keep passing, under a feed and paths as fresh as for a new one.
func (b *Broker) repeat(r *request) error {
	if err := b.feed.Check(b.cfg.FeedLimit); err != nil {
		return err
	}
	if err := b.still(r); err != nil {
		return err
	}
	return question{ByPath, b.checkPath}.run(context.Background(), r)
}

func denied(format string, args ...any) error {
	return protocol.Errorf(protocol.CodePermissionDenied, format, args...)
}

func (b *Broker) checkFeed(context.Context, *request) error { return b.feed.Check(b.cfg.FeedLimit) }

func (b *Broker) checkCapability(_ context.Context, r *request) error {
	now, ok := b.feed.Now()
	if !ok {
		return b.feed.Check(0)
	}
	c, err := capability.Verify(r.token, b.feed.Key, capability.Expect{Audience: b.cfg.Pool, Presenter: r.peer.Thumbprint, Now: now})
	if protocol.CodeOf(err) == protocol.CodeUnauthenticated {
		// A broker that has just started, or whose server has, may not know the key yet.
		if early := b.feed.CheckKeys(); early != nil {
			return early
		}
	}
	if err != nil {
		return err
	}
	r.claims = c
	return nil
}

func (b *Broker) checkDeadline(_ context.Context, r *request) error {
	now, _ := b.feed.Now()
	if !r.claims.Deadline.IsZero() && !now.Before(r.claims.Deadline) {
		return protocol.Errorf(protocol.CodeDeadlineExceeded, "the turn's time is over")
	}
	return nil
}

// storeFloor is the one subject of the floor under every fence.
const storeFloor = "store"

// checkFloors refuses what is below a floor. INV-3, INV-13, INV-16.
func (b *Broker) checkFloors(_ context.Context, r *request) error {
	c := r.claims
	turn := int64(c.Fence)
	if c.Attempt != "" {
		// The fence is the attempt's then: of the turn's floors only "none" counts.
		turn = math.MaxInt64 - 1
	}
	for _, f := range []struct {
		kind  brokerv1.FloorKind
		id    string
		value int64
		code  protocol.Code
		why   string
	}{
		{brokerv1.FloorKind_FLOOR_KIND_STORE, storeFloor, int64(c.Fence), protocol.CodeStaleFence, "the server's store was restored since"},
		{brokerv1.FloorKind_FLOOR_KIND_GRANT, c.Grant.String(), 0, protocol.CodePermissionDenied, "the grant was revoked"},
		{brokerv1.FloorKind_FLOOR_KIND_RUNNER, c.Presenter, 0, protocol.CodePermissionDenied, "the runner was revoked"},
		{brokerv1.FloorKind_FLOOR_KIND_PRINCIPAL, c.Principal.String(), 0, protocol.CodePermissionDenied, "the principal is disabled"},
		{brokerv1.FloorKind_FLOOR_KIND_INSTANCE, c.Instance.String(), c.Generation, protocol.CodePermissionDenied, "the agent's instance was recreated"},
		{brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), 0, protocol.CodePermissionDenied, "the session is closed or revoked"},
		{brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), turn, protocol.CodeStaleFence, "the turn has ended or has another owner"},
		{brokerv1.FloorKind_FLOOR_KIND_ATTEMPT, c.Attempt.String(), int64(c.Fence), protocol.CodeStaleFence, "the attempt has ended or was replaced"},
	} {
		if f.id != "" && b.feed.Below(f.kind, f.id, f.value) {
			err := protocol.Errorf(f.code, "%s", f.why)
			if f.kind == brokerv1.FloorKind_FLOOR_KIND_GRANT {
				err.Detail = protocol.DetailGrantEnded
			}
			return err
		}
	}
	return nil
}

func (b *Broker) checkGrant(ctx context.Context, r *request) error {
	if r.claims.Grant == "" {
		return nil
	}
	return b.ports.Authority.Alive(ctx, r.claims.Grant)
}

func (b *Broker) checkCaps(_ context.Context, r *request) error {
	return b.caps.Load().allow(r.claims, r.model, r.destination())
}

// checkSubject holds the request against what the capability names. INV-10.
func (b *Broker) checkSubject(_ context.Context, r *request) error {
	c := r.claims
	if r.egress != "" {
		return b.checkEgress(r)
	}
	if r.tool == nil {
		if !slices.Contains(c.Models, r.model) {
			return denied("the capability does not name the model route %q", r.model)
		}
		return nil
	}
	digest, err := argumentsDigest(r.arguments)
	if err != nil {
		return err
	}
	switch {
	case c.Action.String() != r.action || r.action == "":
		return denied("the capability is for another action")
	case c.ArgsDigest != digest:
		return denied("the arguments are not those the capability was made for")
	case !slices.Contains(c.Tools, r.tool.GetRef()):
		return denied("the capability does not name the tool %q", r.tool.GetRef())
	case !slices.Contains(c.Destinations, r.tool.GetDestination()):
		return denied("the capability does not name the destination %q", r.tool.GetDestination())
	}
	return nil
}

// argumentsDigest of arguments that must be canonical already: what was approved
// is what is sent.
func argumentsDigest(arguments string) (string, error) {
	form, err := canonical.Canonical([]byte(arguments))
	if err != nil {
		return "", err
	}
	if string(form) != arguments {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the arguments are not in canonical form (RFC 8785)")
	}
	return canonical.Digest(form), nil
}

// leaves is the last question before something is sent: the very request against
// the paths. It is known to the sweep before it is judged, so that a change of the
// paths finds either the flow or its own new entries. INV-10.
func (b *Broker) leaves(ctx context.Context, r *request, wire *consul.Request) error {
	r.wire.Store(wire)
	return question{ByPath, b.checkPath}.run(ctx, r)
}

// checkPath asks who may reach what, for something that begins now: what nobody has
// said for a while is not enough for that.
func (b *Broker) checkPath(_ context.Context, r *request) error {
	return b.checkPathOf(r, r.wire.Load(), false)
}

// checkOpenPath asks the same for something that is open.
func (b *Broker) checkOpenPath(_ context.Context, r *request) error {
	return b.checkPathOf(r, r.wire.Load(), true)
}

// checkPathOf asks first of all whether the destination exists here.
func (b *Broker) checkPathOf(r *request, wire *consul.Request, open bool) error {
	destination, err := b.pathDestination(r)
	if err != nil {
		return err
	}
	source := consul.SourceName(r.claims.TenantName, r.claims.Agent)
	d := b.ports.Paths.Decide(source, destination, wire)
	switch {
	case d.Unknown || d.Stale && !open:
		err := protocol.Errorf(protocol.CodeUnavailable, "%s", refused.Sentence(source, destination, d.Reason))
		err.RetryAfter = pathsAgain
		return err
	case !d.Allowed:
		return protocol.Errorf(protocol.CodePolicyDenied, "%s", refused.Sentence(source, destination, d.Reason))
	}
	return nil
}

// pathsAgain is when a server that says who may reach what may have answered again.
const pathsAgain = time.Second

func (b *Broker) pathDestination(r *request) (string, error) {
	if r.tool != nil || r.egress != "" {
		name := r.destination()
		if b.destinations[name] == nil {
			return "", protocol.Errorf(protocol.CodeNotFound, "the broker has no destination %q: add it to broker.hcl; what is there already counts once bivouac-broker, or bivouac dev, is restarted", name)
		}
		return name, nil
	}
	if b.routes[r.model] == nil {
		return "", protocol.Errorf(protocol.CodeNotFound, "the broker has no model route %q: add it to broker.hcl; what is there already counts once bivouac-broker, or bivouac dev, is restarted", r.model)
	}
	return ModelDestination(r.model), nil
}

// checkBoundary refuses data where its boundary does not go. INV-11.
func (b *Broker) checkBoundary(_ context.Context, r *request) error {
	var what string
	var admits []string
	if r.tool != nil || r.egress != "" {
		what, admits = "destination "+r.destination(), b.destinations[r.destination()].boundaries
		if len(admits) == 0 {
			return nil
		}
	} else {
		what, admits = "model route "+r.model, b.routes[r.model].cfg.DataBoundaries
	}
	if !slices.Contains(admits, r.claims.DataBoundary) {
		return protocol.Errorf(protocol.CodePolicyDenied, "%s does not receive data of the boundary %q: see data_boundaries in broker.hcl", what, r.claims.DataBoundary)
	}
	return nil
}

// allow holds the broker's own caps against a capability.
func (c *Caps) allow(claims capability.Claims, model, destination string) error {
	is := func(name string) bool { return name == claims.TenantName || name == claims.Tenant.String() }
	if c.Tenants != nil && !slices.ContainsFunc(c.Tenants, is) {
		return protocol.Errorf(protocol.CodePolicyDenied, "this broker does not serve the tenant %q: see caps in broker.hcl", claims.TenantName)
	}
	for _, t := range c.Tenant {
		if !is(t.Name) {
			continue
		}
		if model != "" && t.Models != nil && !slices.Contains(t.Models, model) {
			return protocol.Errorf(protocol.CodePolicyDenied, "this broker gives the tenant %q no model route %q: see caps in broker.hcl", claims.TenantName, model)
		}
		if destination != "" && t.Destinations != nil && !slices.Contains(t.Destinations, destination) {
			return protocol.Errorf(protocol.CodePolicyDenied, "this broker gives the tenant %q no destination %q: see caps in broker.hcl", claims.TenantName, destination)
		}
	}
	return nil
}

// account is the name under which a tenant's spend is capped.
func (c *Caps) account(claims capability.Claims) string {
	for _, t := range c.Tenant {
		if t.Name == claims.Tenant.String() {
			return t.Name
		}
	}
	return claims.TenantName
}

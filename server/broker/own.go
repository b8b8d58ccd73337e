package broker

import (
	"context"
	"net/http"

	"bivouac/consul"
	"bivouac/consul/refused"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/intercept"
)

// Own is this broker as a service whose own intentions count: which server may call it is
// said in Consul, too. The role that a certificate under the root names is asked first,
// and is needed all the same.
type Own struct {
	// Service of this broker.
	Service string
	// Caller is the service that a server is where nothing proves its name.
	Caller string
}

// caller is who calls this broker as a service, and what the call is.
type caller struct {
	name    string       // where nothing proves one
	vouched link.Vouched // the newest of its connection; nil: there is none
	wire    *consul.Request
}

type callerKey struct{}

// callerFrom a context; nil: a runner, or a broker whose own intentions do not count.
func callerFrom(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// admitCall refuses callers whose role has no place in the table, and services that may not
// reach this one.
func (b *Broker) admitCall(ctx context.Context, c intercept.Call) (context.Context, error) {
	if err := checkRole(ctx, c.Procedure); err != nil {
		return ctx, err
	}
	if b.ports.Own == nil || peerOf(ctx).Role == identity.RoleRunner {
		return ctx, nil // runners are in no mesh: paths are about their agents
	}
	who := &caller{name: b.ports.Own.Caller, vouched: link.VouchedFrom(ctx), wire: &consul.Request{Method: http.MethodPost, Path: c.Procedure, Header: c.Header}}
	return context.WithValue(ctx, callerKey{}, who), b.checkCaller(who, false)
}

// checkCaller asks whether a service may reach this one. For something that is open, as
// with every path, what was last said counts on while nobody says another thing.
func (b *Broker) checkCaller(who *caller, open bool) error {
	if who == nil {
		return nil
	}
	name, own := who.name, b.ports.Own.Service
	if who.vouched != nil {
		if err := who.vouched.Holds(); err != nil {
			return err
		}
		name = who.vouched.Name()
	}
	d := b.ports.Paths.Decide(name, own, who.wire)
	said := refused.Sentence(name, own, d.Reason)
	switch {
	case d.Unknown || d.Stale && !open:
		err := protocol.Errorf(protocol.CodeUnavailable, "%s", said)
		err.RetryAfter = pathsAgain
		return err
	case !d.Allowed:
		err := protocol.Errorf(protocol.CodePolicyDenied, "%s; whoever may write its intentions opens the link: %s", said, refused.Open(name, own, d.Reason))
		err.Detail = protocol.DetailIntention
		return err
	}
	return nil
}

package runnerapi

import (
	"context"
	"errors"
	"log/slog"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/execution"
	"bivouac/server/intercept"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// gate lets each role to its own methods only, and asks the durable store about
// every runner: a certificate proves a key, not that it is still welcome.
type gate struct{ store *store.Store }

func (g gate) admit(ctx context.Context, c intercept.Call) (context.Context, error) {
	return ctx, g.check(ctx, c.Procedure)
}

func (g gate) check(ctx context.Context, procedure string) error {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return err
	}
	intercept.Annotate(ctx, slog.String("peer", string(peer.Role)+" "+peer.ID))
	if peer.Role != identity.RoleNone {
		if err := policy.MayProve(policy.Subject(peer.Role), policy.ProofCertificate); err != nil {
			return err
		}
	}
	switch procedure {
	case runnerv1connect.RunnerServiceEnrollProcedure:
		return stranger(peer)
	case runnerv1connect.RunnerServiceRecoverChallengeProcedure, runnerv1connect.RunnerServiceRecoverProcedure:
		return lapsed(peer)
	case brokerv1connect.FeedServiceFeedProcedure, brokerv1connect.FeedServiceReportEndedProcedure:
		if peer.Role != identity.RoleBroker {
			return protocol.Errorf(protocol.CodePermissionDenied, "the feed is for brokers; this certificate is of %s", roleName(peer.Role))
		}
		return nil
	}
	if peer.Role != identity.RoleRunner {
		return protocol.Errorf(protocol.CodePermissionDenied,
			"only an enrolled runner may call %s; this certificate is of %s: run bivouac-edge join with a new code", procedure, roleName(peer.Role))
	}
	return welcome(ctx, g.store, peer)
}

func stranger(p identity.Peer) error {
	if p.Role == identity.RoleNone {
		return nil
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"this key is already enrolled as %s %s: run bivouac-edge leave before you join again", p.Role, p.ID)
}

// lapsed is a key without a certificate in force, which may recover.
func lapsed(p identity.Peer) error {
	switch p.Role {
	case identity.RoleNone:
		return nil
	case identity.RoleRunner:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the certificate of runner %s is in force: it is renewed, there is nothing to recover", p.ID)
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "only a runner recovers; this certificate is of %s", roleName(p.Role))
}

// welcome checks that the runner of a certificate is known and active. A runner
// that is not must enrol again; retrying does not help it.
func welcome(ctx context.Context, s *store.Store, p identity.Peer) error {
	r, err := enrolled(ctx, s, protocol.RunnerID(p.ID), p.Thumbprint)
	if err == nil && r.Tenant != p.Tenant {
		return again("the runner %s is enrolled in another tenant", p.ID)
	}
	return err
}

// enrolled is the runner of a key, when it is known and active.
func enrolled(ctx context.Context, s *store.Store, id protocol.RunnerID, thumbprint string) (r execution.Runner, err error) {
	err = s.View(ctx, store.AsLoop("runner gate"), func(tx *store.Tx) (err error) {
		r, err = tx.Runner(id)
		return err
	})
	switch {
	case errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}):
		return r, again("this server does not know the runner %s", id)
	case err != nil:
		return r, err
	case r.Thumbprint != thumbprint:
		return r, again("the runner %s is enrolled with another key", id)
	case r.State == execution.RunnerRevoked:
		return r, again("the runner %s (%s) was revoked", r.Name, r.ID)
	case r.State != execution.RunnerActive:
		return r, again("the runner %s (%s) has left", r.Name, r.ID)
	}
	return r, nil
}

func again(format string, args ...any) error {
	return protocol.Errorf(protocol.CodePermissionDenied,
		format+": enrol again with a new code of bivouac edge invite and bivouac-edge join", args...)
}

func roleName(r identity.Role) string {
	if r == identity.RoleNone {
		return "nobody yet"
	}
	return "a " + string(r)
}

// runnerOf is the peer of a call that the gate admitted, as the store's caller.
// The request never names the runner. INV-9.
func runnerOf(ctx context.Context) (identity.Peer, store.Caller, error) {
	p, err := link.PeerFrom(ctx)
	if err != nil {
		return p, store.Caller{}, err
	}
	return p, store.AsRunner(p.Tenant, protocol.RunnerID(p.ID)), nil
}

package runnerapi

import (
	"context"
	"strings"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	"bivouac/server/execution"
)

// invited is a machine that may enrol: for which tenant, and the step that does it.
type invited struct {
	tenant protocol.TenantID
	enroll func() (execution.Runner, error)
}

// byCode takes a join code of this server.
func (s runners) byCode(ctx context.Context, peer identity.Peer, r *runnerv1.EnrollRequest) (invited, error) {
	code, err := identity.ParseCode(identity.CodeJoin, r.GetCode())
	if err != nil {
		return invited{}, err
	}
	root, err := s.Trust.Root()
	if err != nil {
		return invited{}, err
	}
	if !strings.EqualFold(code.Fingerprint, identity.Fingerprint(root)) {
		return invited{}, protocol.Errorf(protocol.CodeUnauthenticated, "the code is of another server: ask the owner of this one for a code")
	}
	n := engine.Enrolment{CodeHash: code.Hash(), Runner: identity.RunnerID(peer.PublicKey), Name: r.GetName(),
		PublicKey: peer.PublicKey, Thumbprint: peer.Thumbprint}
	tenant, err := s.Engine.InvitationOf(ctx, n)
	return invited{tenant, func() (execution.Runner, error) { return s.Engine.EnrollRunner(ctx, n) }}, err
}

// byWorkload takes a workload identity that server.hcl binds to somebody.
func (s runners) byWorkload(ctx context.Context, peer identity.Peer, r *runnerv1.EnrollRequest) (invited, error) {
	if s.Workloads == nil {
		return invited{}, protocol.Errorf(protocol.CodeFailedPrecondition,
			"this server takes no workload identities: its server.hcl has no nomad block; join with a code of `bivouac edge invite`")
	}
	w, became, err := s.Workloads.Judge(ctx, r.GetWorkloadIdentity())
	if err != nil {
		return invited{}, err
	}
	w.Runner, w.Name, w.PublicKey, w.Thumbprint = identity.RunnerID(peer.PublicKey), r.GetName(), peer.PublicKey, peer.Thumbprint
	if err = s.Engine.MayEnrollWorkload(ctx, w); err != nil {
		became(err)
	}
	return invited{w.Tenant, func() (execution.Runner, error) {
		r, err := s.Engine.EnrollWorkload(ctx, w)
		became(err)
		return r, err
	}}, err
}

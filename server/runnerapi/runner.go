package runnerapi

import (
	"context"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/facts"
	"bivouac/edge/protocol/runnerv1"
)

// runners is the RunnerService: the engine's use cases under the identity of
// the certificate.
type runners struct {
	Config
	challenges *identity.Challenges
}

// Enroll makes a runner of a self-signed certificate and of a code, or of a workload
// identity in its place.
func (s runners) Enroll(ctx context.Context, r *runnerv1.EnrollRequest) (*runnerv1.EnrollResponse, error) {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return nil, err
	}
	version, err := protocol.Agree(r.GetOldestCapabilityVersion(), r.GetCapabilityVersion())
	if err != nil {
		return nil, err
	}
	var by invited
	switch {
	case r.GetWorkloadIdentity() == "":
		by, err = s.byCode(ctx, peer, r)
	case r.GetCode() == "":
		by, err = s.byWorkload(ctx, peer, r)
	default:
		err = protocol.Errorf(protocol.CodeInvalidArgument, "a machine enrols by a code or by a workload identity: give one of them")
	}
	if err != nil {
		return nil, err
	}
	// The code is used last: a certificate that nobody got is of no use to anybody.
	chain, rootPEM, err := s.certify(ctx, identity.RunnerID(peer.PublicKey), by.tenant, peer.PublicKey)
	if err != nil {
		return nil, err
	}
	rn, err := by.enroll()
	if err != nil {
		return nil, err
	}
	return &runnerv1.EnrollResponse{
		RunnerId: rn.ID.String(), TenantId: rn.Tenant.String(), OwnerPrincipalId: rn.Owner.String(),
		CertificateChain: chain, RootCertificate: rootPEM, CapabilityVersion: version, BrokerAddress: s.BrokerAddress,
	}, nil
}

// certifyTimeout is less than a machine that joins waits for its answer.
const certifyTimeout = 6 * time.Second

// certify asks the broker in its time, and says so when it is the broker that does not
// answer: the machine reached this server.
func (s runners) certify(ctx context.Context, runner protocol.RunnerID, tenant protocol.TenantID, key []byte) (chain, root []byte, err error) {
	limit, cancel := context.WithTimeout(ctx, certifyTimeout)
	defer cancel()
	chain, root, err = s.Trust.CertifyRunner(limit, runner, tenant, key)
	switch protocol.CodeOf(err) {
	case protocol.CodeUnavailable, protocol.CodeDeadlineExceeded, protocol.CodeCancelled:
		if ctx.Err() == nil {
			s.Log.WarnContext(ctx, "a machine cannot join: the broker does not answer", "runner", runner, "error", err)
			err = &protocol.Error{Code: protocol.CodeUnavailable, Err: err, Message: "this machine reached the server, but the server cannot reach its broker, which signs what a machine gets: " +
				"start it there, with `bivouac-broker run` or `bivouac dev`, then run the same command again; what it enrols by is not used up"}
		}
	}
	return chain, root, err
}

// RenewCertificate certifies the key of the connection again.
func (s runners) RenewCertificate(ctx context.Context, _ *runnerv1.RenewCertificateRequest) (*runnerv1.RenewCertificateResponse, error) {
	peer, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	chain, _, err := s.Trust.CertifyRunner(ctx, c.Runner(), c.Tenant(), peer.PublicKey)
	if err != nil {
		return nil, err
	}
	return &runnerv1.RenewCertificateResponse{CertificateChain: chain}, nil
}

func (s runners) Connect(ctx context.Context, r *runnerv1.ConnectRequest) (*runnerv1.ConnectResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := facts.Check(r.GetFacts()); err != nil {
		return nil, err
	}
	res, err := s.Engine.Connect(ctx, c, transportOf(ctx), r)
	if err != nil {
		return nil, err
	}
	res.BrokerAddress = s.BrokerAddress
	return res, nil
}

func (s runners) Acknowledge(ctx context.Context, r *runnerv1.AcknowledgeRequest) (*runnerv1.AcknowledgeResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return &runnerv1.AcknowledgeResponse{}, s.Engine.Acknowledge(ctx, c, r)
}

func (s runners) Claim(ctx context.Context, r *runnerv1.ClaimRequest) (*runnerv1.ClaimResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.Engine.Claim(ctx, c, r)
}

func (s runners) Decline(ctx context.Context, r *runnerv1.DeclineRequest) (*runnerv1.DeclineResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return &runnerv1.DeclineResponse{}, s.Engine.Decline(ctx, c, r)
}

func (s runners) Renew(ctx context.Context, r *runnerv1.RenewRequest) (*runnerv1.RenewResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.Engine.Renew(ctx, c, r)
}

func (s runners) Report(ctx context.Context, r *runnerv1.ReportRequest) (*runnerv1.ReportResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.Engine.Report(ctx, c, r)
}

func (s runners) Live(ctx context.Context, r *runnerv1.LiveRequest) (*runnerv1.LiveResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return &runnerv1.LiveResponse{}, s.Engine.Live(ctx, c, r)
}

func (s runners) Announce(ctx context.Context, r *runnerv1.AnnounceRequest) (*runnerv1.AnnounceResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := facts.Check(r.GetFacts()); err != nil {
		return nil, err
	}
	return &runnerv1.AnnounceResponse{}, s.Engine.Announce(ctx, c, r)
}

func (s runners) Leave(ctx context.Context, _ *runnerv1.LeaveRequest) (*runnerv1.LeaveResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	return &runnerv1.LeaveResponse{}, s.Engine.Leave(ctx, c)
}

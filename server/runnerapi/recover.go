package runnerapi

import (
	"context"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
)

// challengeTTL is how long a machine may take to sign.
const challengeTTL = time.Minute

// RecoverChallenge gives an enrolled key what it must sign. Nothing is kept, and it
// is of use to the holder of the key alone.
func (s runners) RecoverChallenge(ctx context.Context, _ *runnerv1.RecoverChallengeRequest) (*runnerv1.RecoverChallengeResponse, error) {
	peer, _, err := s.lapsed(ctx)
	if err != nil {
		return nil, err
	}
	return &runnerv1.RecoverChallengeResponse{Challenge: s.challenges.Make(peer.Thumbprint, time.Now())}, nil
}

// Recover certifies the key of a runner that is enrolled and active again, however
// long it was away: offline is not terminal. A runner that was revoked or has left
// gets nothing, and neither does a key that never was one. INV-13.
func (s runners) Recover(ctx context.Context, r *runnerv1.RecoverRequest) (*runnerv1.RecoverResponse, error) {
	peer, rn, err := s.lapsed(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := protocol.Agree(r.GetOldestCapabilityVersion(), r.GetCapabilityVersion()); err != nil {
		return nil, err
	}
	root, err := s.Trust.Root()
	if err != nil {
		return nil, err
	}
	if err := s.challenges.Check(peer.PublicKey, r.GetChallenge(), r.GetSignature(), root, time.Now()); err != nil {
		return nil, err
	}
	chain, _, err := s.Trust.CertifyRunner(ctx, rn.ID, rn.Tenant, peer.PublicKey)
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(ctx, "a runner recovered with its device key", "runner", rn.ID, "name", rn.Name, "last_seen", rn.LastSeenAt)
	return &runnerv1.RecoverResponse{CertificateChain: chain, BrokerAddress: s.BrokerAddress, ServerTimeUs: time.Now().UnixMicro()}, nil
}

// lapsed is the enrolled runner whose key the connection proved, without a
// certificate in force.
func (s runners) lapsed(ctx context.Context) (identity.Peer, execution.Runner, error) {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return peer, execution.Runner{}, err
	}
	rn, err := enrolled(ctx, s.Store, identity.RunnerID(peer.PublicKey), peer.Thumbprint)
	return peer, rn, err
}

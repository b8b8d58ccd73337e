package broker

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
)

// Rotations renew the secret part of a grant: what its sealed form holds, and where
// there is one, the token behind it. The grant itself goes on.
type Rotations interface {
	// RotateGrant makes another secret part of a living grant and returns it sealed.
	// It counts beside the one in force until SettleRotation ends that. The same
	// rotation again is the same part; another takes the place of what is not settled.
	RotateGrant(ctx context.Context, id protocol.GrantID, r authority.Rotation) (sealed []byte, err error)
	// SettleRotation refuses every secret part but that of the rotation. Before it has
	// succeeded, both may count; one of them always does.
	SettleRotation(ctx context.Context, id protocol.GrantID, r authority.Rotation) error
}

// RotateGrant is asked until its answer is stored; then SettleRotation, until it has
// succeeded: whoever dies in between goes on from there. INV-18.
func (s authorityService) RotateGrant(ctx context.Context, in *brokerv1.RotateGrantRequest) (*brokerv1.RotateGrantResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](in.GetGrantId())
	if err != nil {
		return nil, err
	}
	sealed, err := s.ports.Authority.RotateGrant(ctx, id, authority.Rotation(in.GetRotation()))
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "grant has a new secret part beside the old one", "grant", id, "rotation", in.GetRotation())
	return &brokerv1.RotateGrantResponse{Sealed: sealed}, nil
}

// SettleRotation ends the old secret part. Open flows go on: they have what they need,
// and the grant lives.
func (s authorityService) SettleRotation(ctx context.Context, in *brokerv1.SettleRotationRequest) (*brokerv1.SettleRotationResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](in.GetGrantId())
	if err != nil {
		return nil, err
	}
	if err := s.ports.Authority.SettleRotation(ctx, id, authority.Rotation(in.GetRotation())); err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "the old secret part of a grant has ended", "grant", id, "rotation", in.GetRotation())
	return &brokerv1.SettleRotationResponse{}, nil
}

package broker

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/ledger"
)

// maxReceipt bounds what is signed.
const maxReceipt = 256 << 10

// signable refuses what is too large, and another spelling of the same.
func signable(receipt []byte) error {
	if len(receipt) > maxReceipt {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the receipt is larger than 256 KiB")
	}
	form, err := canonical.Canonical(receipt)
	if err != nil {
		return err
	}
	if string(form) != string(receipt) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the receipt is not in canonical form (RFC 8785)")
	}
	return nil
}

// LastHead says from where a server has to prove that its ledger goes on.
func (s trustService) LastHead(_ context.Context, in *brokerv1.LastHeadRequest) (*brokerv1.LastHeadResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	last := s.witness.Last(tenant)
	return &brokerv1.LastHeadResponse{Size: last.Size, Root: last.Root[:], Epoch: int64(last.Epoch)}, nil
}

// SignHead signs a ledger's head that follows the last one, which is on the disk
// before the answer. INV-8.
func (s trustService) SignHead(ctx context.Context, in *brokerv1.SignHeadRequest) (*brokerv1.SignHeadResponse, error) {
	if err := signable(in.GetHead()); err != nil {
		return nil, err
	}
	head, err := ledger.ReadHead(in.GetHead())
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%w", err)
	}
	if _, err := protocol.ParseID[protocol.TenantKind](head.Tenant.String()); err != nil || head.Size < 1 || head.Epoch < 1 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the head names no tenant, no segment or no epoch of its store")
	}
	proof := make([]ledger.Hash, len(in.GetProof()))
	for i, h := range in.GetProof() {
		if len(h) != len(ledger.Hash{}) {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "hash %d of the proof has %d bytes, not 32", i, len(h))
		}
		proof[i] = ledger.Hash(h)
	}
	if err := s.witness.Take(head, in.GetAfterSize(), proof); err != nil {
		return nil, err
	}
	jws, err := s.ports.Root.SignReceipt(ctx, in.GetHead())
	if err != nil {
		return nil, err
	}
	return &brokerv1.SignHeadResponse{Jws: jws}, nil
}

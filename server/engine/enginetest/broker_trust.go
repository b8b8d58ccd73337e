package enginetest

import (
	"context"
	"encoding/base64"
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/ledger"
)

// CreateGrant seals by name only: nothing here needs to open it.
func (b *Broker) CreateGrant(_ context.Context, req *brokerv1.CreateGrantRequest) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	return []byte("sealed:" + req.GrantId), nil
}

// RevokeGrant refuses the grant from now on.
func (b *Broker) RevokeGrant(_ context.Context, id protocol.GrantID) (*brokerv1.RevokeGrantResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	if b.disowned[id] {
		return nil, protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
	}
	now := time.Now()
	b.revoked[id] = now
	return &brokerv1.RevokeGrantResponse{RevokedUs: now.UnixMicro(), FlowsZeroUs: now.UnixMicro()}, nil
}

// Disown forgets a grant, as a broker does whose grants are held elsewhere now.
func (b *Broker) Disown(id protocol.GrantID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disowned[id] = true
}

// LastHead that SignHead took.
func (b *Broker) LastHead(_ context.Context, t protocol.TenantID) (*brokerv1.LastHeadResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	h := b.heads[t]
	return &brokerv1.LastHeadResponse{Size: h.Size, Root: h.Root[:], Epoch: int64(h.Epoch)}, nil
}

// SignHead refuses a head that does not follow, as a broker does.
func (b *Broker) SignHead(ctx context.Context, req *brokerv1.SignHeadRequest) (string, error) {
	head, err := ledger.ReadHead(req.Head)
	if err != nil {
		return "", err
	}
	var proof []ledger.Hash
	for _, h := range req.Proof {
		proof = append(proof, ledger.Hash(h))
	}
	b.mu.Lock()
	err = head.Follows(b.heads[head.Tenant], proof)
	var broken *ledger.Refusal
	if errors.As(err, &broken) && broken.Break == ledger.BreakRestored && b.Accepted[head.Epoch] {
		err = nil
	}
	if err == nil && !b.down {
		b.heads[head.Tenant] = head
	}
	b.mu.Unlock()
	if err != nil {
		return "", err
	}
	return b.SignReceipt(ctx, req.Head)
}

// SignReceipt wraps the receipt; it is no real signature.
func (b *Broker) SignReceipt(_ context.Context, receipt []byte) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return "", unreachable()
	}
	if b.Receipt != nil {
		return b.Receipt(receipt)
	}
	return "test." + base64.RawURLEncoding.EncodeToString(receipt) + ".test", nil
}

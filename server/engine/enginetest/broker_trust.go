package enginetest

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"strings"
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

// SetPending has the authority not take ends for a reason; empty: it takes them.
func (b *Broker) SetPending(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = why
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
	return &brokerv1.RevokeGrantResponse{RevokedUs: now.UnixMicro(), FlowsZeroUs: now.UnixMicro(), Pending: b.pending}, nil
}

// parts of a grant that were sealed and count: the one in force, and one that is not
// settled.
type parts struct{ now, next string }

func sealedAs(id protocol.GrantID, part string) string {
	return strings.TrimSuffix("sealed:"+id.String()+":"+part, ":")
}

func (p parts) open(sealed []byte) bool { return string(sealed) == p.now || string(sealed) == p.next }

// RotateGrant seals a second part by name, beside the first.
func (b *Broker) RotateGrant(_ context.Context, id protocol.GrantID, rotation string) (sealed []byte, err error) {
	err = b.rotating("rotate", id, func(p *parts) error {
		sealed = []byte(sealedAs(id, rotation))
		if p.now != string(sealed) {
			p.next = string(sealed)
		}
		return nil
	})
	return sealed, err
}

// SettleRotation refuses every other part from now on.
func (b *Broker) SettleRotation(_ context.Context, id protocol.GrantID, rotation string) error {
	return b.rotating("settle", id, func(p *parts) error {
		switch sealedAs(id, rotation) {
		case p.now:
		case p.next:
			p.now, p.next = p.next, ""
		default:
			return protocol.Errorf(protocol.CodeConflict, "grant %s has no secret part of %s", id, rotation)
		}
		return nil
	})
}

func (b *Broker) rotating(step string, id protocol.GrantID, change func(*parts) error) error {
	b.mu.Lock()
	before := b.step
	b.mu.Unlock()
	if before != nil {
		before(step)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, revoked := b.revoked[id]
	switch {
	case b.down:
		return unreachable()
	case b.disowned[id]:
		return protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
	case revoked:
		return protocol.Errorf(protocol.CodeConflict, "grant %s was revoked", id)
	}
	p, renewed := b.parts[id]
	if !renewed {
		p.now = sealedAs(id, "")
	}
	err := change(&p)
	if err == nil {
		b.parts[id] = p
	}
	return err
}

// Copy is what PutBack brings back.
type Copy struct {
	at    time.Time
	parts map[protocol.GrantID]parts
}

// Copy of its grants as they are now.
func (b *Broker) Copy() Copy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Copy{time.Now(), maps.Clone(b.parts)}
}

// PutBack makes the parts of grants count that a copy has, as a broker does whose
// keyring was restored.
func (b *Broker) PutBack(c Copy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asOf, b.restored = c.at, time.Now()
	for id := range b.parts {
		p, had := c.parts[id]
		if !had {
			p.now = sealedAs(id, "")
		}
		b.parts[id] = p
	}
}

// OnRotation is called before each step of a rotation, "rotate" and "settle".
func (b *Broker) OnRotation(f func(step string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step = f
}

// OnCall is called before each call is looked at.
func (b *Broker) OnCall(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calling = f
}

// Opens reports that a sealed grant is one whose part counts.
func (b *Broker) Opens(id protocol.GrantID, sealed []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, renewed := b.parts[id]; renewed {
		return p.open(sealed)
	}
	return string(sealed) == sealedAs(id, "")
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

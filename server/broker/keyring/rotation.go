package keyring

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

// RotateGrant lists another secret part of a grant beside the one in force, and
// returns the grant sealed with it. The same rotation again changes nothing; one that is
// over is refused, for its part is ended for good.
func (k *Keyring) RotateGrant(_ context.Context, id protocol.GrantID, r authority.Rotation) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	var g authority.Grant
	err := k.updateGrant(id, func(l *listed) error {
		g = l.Grant
		if r == l.Part || r == l.Pending {
			return nil
		}
		if err := l.Over.Check(id, r); err != nil {
			return err
		}
		l.Over, l.Pending = l.Over.With(l.Pending), r
		return nil
	})
	if err != nil {
		return nil, err
	}
	return k.sealGrant(g, r)
}

// SettleRotation makes the part of a rotation the only one that counts.
func (k *Keyring) SettleRotation(_ context.Context, id protocol.GrantID, r authority.Rotation) error {
	if err := r.Check(); err != nil {
		return err
	}
	return k.updateGrant(id, func(l *listed) error {
		switch r {
		case l.Part:
		case l.Pending:
			l.Over, l.Part, l.Pending = l.Over.With(l.Part), r, ""
		default:
			return r.Unknown(id)
		}
		return nil
	})
}

// updateGrant changes one grant that is alive, durably; what is as it was is not
// written again.
func (k *Keyring) updateGrant(id protocol.GrantID, change func(*listed) error) error {
	return k.update(func(c *content) error {
		i := indexGrant(c.Grants, id)
		switch {
		case i < 0:
			return protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
		case !c.Grants[i].RevokedAt.IsZero():
			return wasRevoked(id)
		}
		before := c.Grants[i]
		if err := change(&c.Grants[i]); err != nil {
			return err
		}
		if now := c.Grants[i]; now.Part == before.Part && now.Pending == before.Pending {
			return errUnchanged
		}
		return nil
	})
}

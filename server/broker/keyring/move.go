package keyring

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
)

// Moving is what a keyring holds of authority, for whoever takes it over.
type Moving struct {
	Grants      []MovingGrant
	Credentials []MovingCredential
}

// MovingGrant is a grant with the name of the secret part that is in force, and those of
// parts that are over.
type MovingGrant struct {
	authority.Grant
	Part authority.Rotation
	Over authority.Over
}

// MovingCredential is a credential with its value, which prints as REDACTED.
type MovingCredential struct {
	Tenant protocol.TenantID
	Name   string
	Value  secret.Value
}

// moved says to where authority went, and keeps the receipt of it.
type moved struct {
	To      string    `json:"to"`
	At      time.Time `json:"at"`
	Receipt string    `json:"receipt"`
}

// Moving lists grants, revoked ones too, and credentials. A rotation that is not settled
// must be brought to its end first: two parts of a grant cannot move.
func (k *Keyring) Moving() (Moving, error) {
	var out Moving
	c := k.content.Load()
	for _, l := range c.Grants {
		if l.Pending != "" && l.RevokedAt.IsZero() {
			return Moving{}, protocol.Errorf(protocol.CodeFailedPrecondition, "grant %s is being renewed: let that come to its end first, with the broker and its server running (bivouac grant show %s)", l.ID, l.ID)
		}
		out.Grants = append(out.Grants, MovingGrant{l.Grant, l.Part, l.Over})
	}
	for _, s := range c.Credentials {
		v, err := secret.New(s.Value)
		if err != nil {
			return Moving{}, protocol.Errorf(protocol.CodeDataLoss, "the credential %q of tenant %s cannot be used: %w; store it anew or delete it first", s.Name, s.Tenant, err)
		}
		out.Credentials = append(out.Credentials, MovingCredential{s.Tenant, s.Name, v})
	}
	return out, nil
}

// Left counts what Moving would bring: grants in force, and credentials.
func (k *Keyring) Left() (grants, credentials int) {
	c := k.content.Load()
	for _, l := range c.Grants {
		if l.RevokedAt.IsZero() {
			grants++
		}
	}
	return grants, len(c.Credentials)
}

// Moved ends what was moved: grants and credentials are not in the keyring any more, in
// one step with the receipt that says so. Its key goes on opening what it sealed, for
// whoever holds the grants now. Of a keyring that has nothing more it is the receipt of
// before; empty: nothing was ever moved.
func (k *Keyring) Moved(ctx context.Context, to string, m Moving) (receipt string, err error) {
	if len(m.Grants)+len(m.Credentials) == 0 {
		if before := k.content.Load().Moved; before != nil {
			return before.Receipt, nil
		}
		return "", nil
	}
	at := now()
	body, err := canonical.Marshal(map[string]any{"kind": "move", "broker": k.BrokerID(), "to": to, "at": at.Format(time.RFC3339Nano),
		"grants": m.ids(true), "revoked": m.ids(false), "credentials": m.names()})
	if err != nil {
		return "", err
	}
	if receipt, err = k.SignReceipt(ctx, body); err != nil {
		return "", err
	}
	err = k.update(func(c *content) error {
		gone := map[protocol.GrantID]bool{}
		for _, g := range m.Grants {
			gone[g.ID] = true
		}
		c.Grants = slices.DeleteFunc(c.Grants, func(l listed) bool { return gone[l.ID] })
		c.Credentials = slices.DeleteFunc(c.Credentials, func(s storedCredential) bool {
			return slices.ContainsFunc(m.Credentials, func(x MovingCredential) bool { return x.Tenant == s.Tenant && x.Name == s.Name })
		})
		c.Moved = &moved{to, at, receipt}
		return nil
	})
	return receipt, err
}

func (m Moving) ids(alive bool) []string {
	out := []string{}
	for _, g := range m.Grants {
		if g.RevokedAt.IsZero() == alive {
			out = append(out, g.ID.String())
		}
	}
	return out
}

func (m Moving) names() []string {
	out := []string{}
	for _, c := range m.Credentials {
		out = append(out, c.Tenant.String()+"/"+c.Name)
	}
	return out
}

// OpenGrant opens what this keyring sealed, for whoever holds the grant now: whether it
// lives, and whether its secret part counts, is the holder's to say.
func (k *Keyring) OpenGrant(sealed []byte) (authority.Grant, authority.Rotation, error) {
	plain, err := k.grants.Open(nil, nil, sealed, grantContext)
	var p part
	if err == nil {
		err = json.Unmarshal(plain, &p)
	}
	if err != nil {
		return authority.Grant{}, "", protocol.Errorf(protocol.CodePermissionDenied, "the sealed grant was not made by this broker")
	}
	return p.Grant, p.Part, nil
}

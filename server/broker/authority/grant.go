// Package authority holds the words of the Authority port: grants, credentials
// and the question whether one may be used for the other. Implementations are a
// keyring file (server/broker/keyring) and Vault or OpenBao (vaultpolicy); the
// suite authoritytest holds for all of them. It has no behaviour but its checks.
package authority

import (
	"regexp"
	"slices"
	"time"

	"bivouac/edge/protocol"
)

// Grant is the renewable authority of a principal to an agent: which credentials
// may be injected on the agent's behalf. INV-10: it is one of the factors that
// only narrow.
type Grant struct {
	ID          protocol.GrantID
	Tenant      protocol.TenantID
	Principal   protocol.PrincipalID
	Agent       string
	Credentials []string
	CreatedAt   time.Time
	RevokedAt   time.Time // zero: alive
}

// Ended is a grant that ended where it is held, without this broker's doing: an
// admin took it back there, or its time was over.
type Ended struct {
	Grant protocol.GrantID
	At    time.Time // when it was seen
	// How it ended, in words that complete "the grant ended: …".
	How string
}

// SameAs reports whether two grants give the same to the same.
func (g Grant) SameAs(o Grant) bool {
	return g.ID == o.ID && g.Tenant == o.Tenant && g.Principal == o.Principal && g.Agent == o.Agent && slices.Equal(g.Credentials, o.Credentials)
}

// Check refuses a grant that names nothing or names it badly.
func (g Grant) Check() error {
	if g.ID == "" || g.Tenant == "" || g.Principal == "" || g.Agent == "" {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a grant needs an id, a tenant, a principal and an agent")
	}
	if len(g.Credentials) > 64 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a grant names at most 64 credentials")
	}
	for _, c := range g.Credentials {
		if err := CheckName(c); err != nil {
			return err
		}
	}
	return nil
}

// Use is what a request wants to do under a grant, as its capability says.
type Use struct {
	Grant  protocol.GrantID
	Sealed []byte
	Tenant protocol.TenantID
	// TenantName as paths use it. It decides nothing here.
	TenantName string
	Principal  protocol.PrincipalID
	Agent      string
	// Credential that is to be injected.
	Credential string
	// Session and Action that it is for, as who issues it names them. They decide
	// nothing here.
	Session protocol.SessionID
	Action  protocol.ActionID
	// Command that a credential of SSH is bound to; empty elsewhere.
	Command string
}

// Allows checks a use against an opened grant.
func (g Grant) Allows(u Use) error {
	denied := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodePermissionDenied, format, args...)
	}
	switch {
	case !g.RevokedAt.IsZero():
		return denied("grant %s was revoked", g.ID)
	case g.ID != u.Grant || g.Tenant != u.Tenant || g.Principal != u.Principal || g.Agent != u.Agent:
		return denied("the sealed grant belongs to another principal, agent or tenant")
	case !slices.Contains(g.Credentials, u.Credential):
		return denied("grant %s does not include the credential %q: the principal must grant it to agent %s: bivouac grant create --agent %s --credential %s", g.ID, u.Credential, g.Agent, g.Agent, u.Credential)
	}
	return nil
}

// Credential without its value.
type Credential struct {
	Name      string
	UpdatedAt time.Time
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckName of a credential.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"%q is no credential name: up to 64 lower-case letters, digits, dots, hyphens and underscores", name)
	}
	return nil
}

// Revoked is the refusal of what stands on a grant that ended; how may be empty. It
// is told apart from every other refusal, so that a turn ends for that reason.
func Revoked(id protocol.GrantID, how string) error {
	e := protocol.Errorf(protocol.CodePermissionDenied, "grant %s was revoked", id)
	if how != "" {
		e.Message += ": " + how
	}
	e.Detail = protocol.DetailGrantEnded
	return e
}

// Rotation names one renewal of a grant's secret part: whoever asks for it chooses it.
type Rotation string

var rotationForm = regexp.MustCompile(`^[a-z0-9_]{8,64}$`)

// Check refuses what cannot name a rotation.
func (r Rotation) Check() error {
	if !rotationForm.MatchString(string(r)) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q names no rotation: 8 to 64 lower-case letters, digits and underscores", string(r))
	}
	return nil
}

// Rotated is the refusal of an older secret part of a grant that lives. It is told
// apart, so that whoever holds the newer one asks again with it.
func Rotated(id protocol.GrantID) error {
	e := protocol.Errorf(protocol.CodePermissionDenied, "the secret part of grant %s was renewed, and this is an older one: renew it once more with bivouac grant rotate %s", id, id)
	e.Detail = protocol.DetailGrantRotated
	return e
}

// Over are rotations of a grant whose secret part counted, and does not any more: the
// newest last. A request of one of them that was held up on its way makes nothing.
type Over []Rotation

// maxOver is how many are remembered: far more than can be on their way.
const maxOver = 64

// With one more; the first part of a grant has no rotation.
func (o Over) With(r Rotation) Over {
	if r == "" || slices.Contains(o, r) {
		return o
	}
	return append(slices.Clone(o[max(0, len(o)-maxOver+1):]), r)
}

// Check refuses a rotation that is over.
func (o Over) Check(id protocol.GrantID, r Rotation) error {
	if slices.Contains(o, r) {
		return protocol.Errorf(protocol.CodeConflict, "the rotation %s of grant %s is over, and another took its place: begin a new one with bivouac grant rotate %s", r, id, id)
	}
	return nil
}

// Unknown is the refusal to settle a rotation that was never begun, or that another
// took the place of.
func (r Rotation) Unknown(id protocol.GrantID) error {
	return protocol.Errorf(protocol.CodeConflict, "grant %s has no secret part of the rotation %s: begin it again with bivouac grant rotate %s", id, r, id)
}

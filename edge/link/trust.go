package link

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Trust says which peer a Client accepts. Names in DNS play no part: the chain
// must end at the pinned root and the leaf must name the role.
type Trust struct {
	Role identity.Role
	// Root is the pinned root certificate.
	Root *x509.Certificate
	// Fingerprint pins the root that the peer shows, before it is known: the
	// first meeting. No clock is asked then, since a new machine's may be wrong.
	Fingerprint string
	// Now judges dates under a pinned root. Default time.Now.
	Now func() time.Time
}

func (t Trust) validate() error {
	if t.Role == identity.RoleNone {
		return protocol.Errorf(protocol.CodeInvalidArgument, "link: the expected role is missing")
	}
	if (t.Root == nil) == (t.Fingerprint == "") {
		return protocol.Errorf(protocol.CodeInvalidArgument, "link: exactly one of root and fingerprint must be pinned")
	}
	if b, err := hex.DecodeString(t.Fingerprint); t.Fingerprint != "" && (err != nil || len(b) != 32) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "link: a fingerprint is 64 hexadecimal digits")
	}
	return nil
}

// verify judges what the peer showed in the handshake.
func (t Trust) verify(state tls.ConnectionState) error {
	certs := state.PeerCertificates
	if len(certs) == 0 {
		return protocol.Errorf(protocol.CodeUnauthenticated, "the peer shows no certificate")
	}
	root, now := t.Root, time.Now()
	if t.Now != nil {
		now = t.Now()
	}
	if root == nil {
		var err error
		if root, err = shownRoot(certs, t.Fingerprint); err != nil {
			return err
		}
		now = certs[0].NotBefore
	}
	if _, err := identity.VerifyChain(certs, root, now); err != nil {
		return protocol.Errorf(protocol.CodeUnauthenticated,
			"the peer's certificate does not hang from the pinned root %.12s…: %w; check the address, and this machine's clock", identity.Fingerprint(root), err)
	}
	id, err := identity.FromLeaf(certs[0])
	if err != nil {
		return err
	}
	if id.Role != t.Role {
		return protocol.Errorf(protocol.CodeUnauthenticated, "the peer is a %s, not a %s: check the address", roleName(id.Role), t.Role)
	}
	return nil
}

// OutOfDate reports a peer that this side's clock finds too old or too young, and
// that is otherwise not judged yet: one of the two clocks is wrong, or the peer
// was not renewed.
func OutOfDate(err error) bool {
	var invalid x509.CertificateInvalidError
	return errors.As(err, &invalid) && invalid.Reason == x509.Expired
}

// shownRoot finds the root with the pinned fingerprint among what was shown.
func shownRoot(certs []*x509.Certificate, fingerprint string) (*x509.Certificate, error) {
	for _, c := range certs {
		if c.IsCA && strings.EqualFold(identity.Fingerprint(c), fingerprint) && c.CheckSignatureFrom(c) == nil {
			return c, nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeUnauthenticated,
		"the server shows the root fingerprint %s, the code names %s: it is another server, or somebody stands in between; "+
			"check the address and ask the server's owner for a new code", identity.Fingerprint(certs[len(certs)-1]), fingerprint)
}

func roleName(r identity.Role) string {
	if r == identity.RoleNone {
		return "peer without a role"
	}
	return string(r)
}

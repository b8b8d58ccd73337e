// Package identity says who is at the other end of a TLS connection: keys,
// thumbprints, self-signed certificates for the first meeting, and the URI in
// a certificate that names a server, a broker or a runner. All certificates of
// a deployment hang from one root whose fingerprint join codes and logins pin.
package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"math/big"
	"net/url"
	"strings"
	"time"

	"bivouac/edge/protocol"
)

// Role of a peer, the host part of its URI.
type Role string

const (
	RoleServer Role = "server"
	RoleBroker Role = "broker"
	RoleRunner Role = "runner"
	// RoleNone is a self-signed certificate: only enrolment accepts it.
	RoleNone Role = ""
)

// Peer is the proven identity of a connection.
type Peer struct {
	Role Role
	ID   string
	// Tenant of a runner.
	Tenant protocol.TenantID
	// Thumbprint of its public key.
	Thumbprint string
	PublicKey  []byte // DER, SubjectPublicKeyInfo
}

// URI is the name that a certificate carries: bivouac://runner/<id>?tenant=<id>.
func URI(role Role, id string, tenant protocol.TenantID) *url.URL {
	u := &url.URL{Scheme: "bivouac", Host: string(role), Path: "/" + id}
	if tenant != "" {
		u.RawQuery = url.Values{"tenant": {tenant.String()}}.Encode()
	}
	return u
}

// Thumbprint of a public key: base64url of SHA-256 over its DER form.
func Thumbprint(spki []byte) string {
	sum := sha256.Sum256(spki)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Fingerprint of a root certificate for people and join codes: hex SHA-256 of
// its public key, so that a renewed certificate of the same key keeps it.
func Fingerprint(root *x509.Certificate) string {
	sum := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// FromTLS reads the peer of a handshake. The chain was verified by the
// listener's configuration; a certificate without our URI has RoleNone.
func FromTLS(state *tls.ConnectionState) (Peer, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return Peer{}, protocol.Errorf(protocol.CodeUnauthenticated, "the connection has no client certificate")
	}
	leaf := state.PeerCertificates[0]
	p := Peer{Thumbprint: Thumbprint(leaf.RawSubjectPublicKeyInfo), PublicKey: leaf.RawSubjectPublicKeyInfo}
	if len(state.VerifiedChains) == 0 {
		return p, nil
	}
	return FromLeaf(leaf)
}

// FromLeaf reads the identity that a verified leaf certificate names.
func FromLeaf(leaf *x509.Certificate) (Peer, error) {
	p := Peer{Thumbprint: Thumbprint(leaf.RawSubjectPublicKeyInfo), PublicKey: leaf.RawSubjectPublicKeyInfo}
	for _, u := range leaf.URIs {
		if u.Scheme == "bivouac" {
			p.Role, p.ID = Role(u.Host), strings.TrimPrefix(u.Path, "/")
			p.Tenant = protocol.TenantID(u.Query().Get("tenant"))
			return p, nil
		}
	}
	return p, protocol.Errorf(protocol.CodeUnauthenticated, "the peer's certificate names no Bivouac identity")
}

// SelfSigned makes the certificate with which a new key introduces itself.
func SelfSigned(key ed25519.PrivateKey, now time.Time) (tls.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    now.Add(-24 * time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(nil, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

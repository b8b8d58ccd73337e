// Package brokerlinktest is a small real broker for tests of the server: a root
// that certifies, mutual TLS, and the three services that a server calls. What
// its models and tools answer comes from a Backend; grants and credentials live
// in memory. It checks no capability: the broker's own tests do.
package brokerlinktest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Root is the key that a deployment hangs from.
type Root struct {
	Key  ed25519.PrivateKey
	Cert *x509.Certificate
	// Behind is how far the clock is by which it certifies.
	Behind time.Duration
}

// NewRoot makes one that is valid for ten years.
func NewRoot() (*Root, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(nil, t, t, pub, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Root{Key: key, Cert: cert}, err
}

// PEM of the root certificate.
func (r *Root) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Cert.Raw})
}

// Certify signs a key (DER, SubjectPublicKeyInfo) for a role. The answer is PEM.
func (r *Root) Certify(spki []byte, role identity.Role, id string, tenant protocol.TenantID, ttl time.Duration) ([]byte, error) {
	pub, err := x509.ParsePKIXPublicKey(spki)
	if err != nil {
		return nil, err
	}
	now := time.Now().Add(-r.Behind)
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now, NotAfter: now.Add(ttl),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:        []*url.URL{identity.URI(role, id, tenant)},
	}
	der, err := x509.CreateCertificate(nil, t, r.Cert, pub, r.Key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Leaf makes a key and a certificate for it.
func (r *Root) Leaf(role identity.Role, id string, tenant protocol.TenantID, ttl time.Duration) (*tls.Certificate, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return r.LeafFor(key, role, id, tenant, ttl)
}

// LeafFor certifies a key that is there.
func (r *Root) LeafFor(key ed25519.PrivateKey, role identity.Role, id string, tenant protocol.TenantID, ttl time.Duration) (*tls.Certificate, error) {
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	chain, err := r.Certify(spki, role, id, tenant, ttl)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}, err
}

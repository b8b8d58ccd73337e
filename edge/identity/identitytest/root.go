// Package identitytest makes roots and leaf certificates for tests, with the
// shapes that the broker's keyring gives out.
package identitytest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Root is a root key with its self-signed certificate.
type Root struct {
	Key         ed25519.PrivateKey
	Certificate *x509.Certificate
}

// NewRoot makes a root that is valid for ten years around now.
func NewRoot() *Root {
	key := NewKey()
	t := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "Bivouac root"},
		NotBefore:             time.Now().Add(-365 * 24 * time.Hour),
		NotAfter:              time.Now().Add(9 * 365 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	return &Root{Key: key, Certificate: create(t, t, key.Public(), key)}
}

// NewKey makes a device or service key.
func NewKey() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

// Fingerprint as codes carry it.
func (r *Root) Fingerprint() string { return identity.Fingerprint(r.Certificate) }

// Leaf certifies a new key for a role, for 24 hours.
func (r *Root) Leaf(role identity.Role, id string, tenant protocol.TenantID) *tls.Certificate {
	key := NewKey()
	return r.Certify(key, role, id, tenant, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
}

// Runner certifies a new key under the identifier that hangs from it.
func (r *Root) Runner(tenant protocol.TenantID) (*tls.Certificate, protocol.RunnerID) {
	key := NewKey()
	id := RunnerID(key)
	return r.Certify(key, identity.RoleRunner, id.String(), tenant, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)), id
}

// RunnerID of a key.
func RunnerID(key ed25519.PrivateKey) protocol.RunnerID {
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		panic(err)
	}
	return identity.RunnerID(spki)
}

// Certify makes a leaf for key with chosen dates.
func (r *Root) Certify(key ed25519.PrivateKey, role identity.Role, id string, tenant protocol.TenantID, from, to time.Time) *tls.Certificate {
	leaf := r.CertifyPublic(key.Public().(ed25519.PublicKey), role, id, tenant, from, to)
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// CertifyPublic makes a leaf for the key of somebody else.
func (r *Root) CertifyPublic(key ed25519.PublicKey, role identity.Role, id string, tenant protocol.TenantID, from, to time.Time) *x509.Certificate {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: string(role)},
		URIs:         []*url.URL{identity.URI(role, id, tenant)},
		NotBefore:    from,
		NotAfter:     to,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	return create(t, r.Certificate, key, r.Key)
}

// PEM of certificates, in order.
func PEM(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func create(t, parent *x509.Certificate, public any, key ed25519.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, key)
	if err != nil {
		panic(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return c
}

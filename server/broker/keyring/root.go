package keyring

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net"
	"net/url"
	"regexp"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/capability"
)

const (
	// LeafTTL of every certificate below the root.
	LeafTTL = 24 * time.Hour
	// skew lets clocks that are a little behind accept what was just signed.
	skew = 5 * time.Minute

	sealType    = "bivouac-seal"
	receiptType = "bivouac-receipt"
)

// Root certificate that everybody pins.
func (k *Keyring) Root() *x509.Certificate { return k.rootCert }

// Issue certifies a key for LeafTTL. The chain is PEM, leaf first, without the
// root.
func (k *Keyring) Issue(_ context.Context, l authority.Leaf) (chain []byte, notAfter time.Time, err error) {
	pub, err := x509.ParsePKIXPublicKey(l.SPKI)
	if err != nil {
		return nil, notAfter, protocol.Errorf(protocol.CodeInvalidArgument, "the public key cannot be read")
	}
	if _, ok := pub.(ed25519.PublicKey); !ok {
		return nil, notAfter, protocol.Errorf(protocol.CodeInvalidArgument, "only Ed25519 keys are certified")
	}
	at := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial(),
		NotBefore:    at.Add(-skew),
		NotAfter:     at.Add(LeafTTL).Truncate(time.Second),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{identity.URI(l.Role, l.ID, l.Tenant)},
	}
	if l.Role != identity.RoleRunner {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if err := addNames(t, l.Names); err != nil {
		return nil, notAfter, err
	}
	der, err := x509.CreateCertificate(nil, t, k.rootCert, pub, k.root)
	if err != nil {
		return nil, notAfter, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), t.NotAfter, nil
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?$`)

func addNames(t *x509.Certificate, names []string) error {
	if len(names) > 32 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a certificate carries at most 32 names")
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if len(n) <= 253 && hostForm.MatchString(n) {
			t.DNSNames = append(t.DNSNames, n)
		} else {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no host name or address", n)
		}
	}
	return nil
}

// CertifyKey states that a server's hourly key signs capabilities.
func (k *Keyring) CertifyKey(_ context.Context, server string, pub ed25519.PublicKey) (statement string, notAfter time.Time, err error) {
	at := time.Now()
	notAfter = at.Add(capability.KeyTTL).Truncate(time.Second)
	statement, err = capability.Certify(k.root, server, pub, at.Add(-skew), notAfter)
	return statement, notAfter, err
}

// SignReceipt signs with the receipt key. The signature carries the chain to the
// root (x5c, RFC 7515 section 4.1.6), so that a fingerprint is enough to check it.
func (k *Keyring) SignReceipt(_ context.Context, receipt []byte) (string, error) {
	chain := []string{base64.StdEncoding.EncodeToString(k.receiptCert.Raw), base64.StdEncoding.EncodeToString(k.rootCert.Raw)}
	return signJWS(k.receipt, capability.KeyID(k.receipt.Public().(ed25519.PublicKey)), receiptType, receipt, chain)
}

// signJWS makes a compact EdDSA signature with a key, or with whoever holds it; x5c
// is left out when it is nil.
func signJWS(key any, id, typ string, body []byte, x5c []string) (string, error) {
	opts := (&jose.SignerOptions{}).WithType(jose.ContentType(typ)).WithHeader("kid", id)
	if x5c != nil {
		opts = opts.WithHeader("x5c", x5c)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, opts)
	if err != nil {
		return "", err
	}
	sig, err := s.Sign(body)
	if err != nil {
		return "", err
	}
	return sig.CompactSerialize()
}

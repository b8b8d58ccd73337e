package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"bivouac/edge/protocol"
)

// RunnerID is the identifier of the runner that holds a public key: the same
// key is the same runner, and two runners never share an id.
func RunnerID(spki []byte) protocol.RunnerID {
	sum := sha256.Sum256(spki)
	var u ulid.ULID
	copy(u[:], sum[:])
	return protocol.RunnerID("run_" + strings.ToLower(u.String()))
}

// VerifyChain checks that the first of certs hangs from root at the time now,
// with the others as intermediates. Names and key usages are the caller's.
func VerifyChain(certs []*x509.Certificate, root *x509.Certificate, now time.Time) ([][]*x509.Certificate, error) {
	if len(certs) == 0 {
		return nil, protocol.Errorf(protocol.CodeUnauthenticated, "there is no certificate")
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	return certs[0].Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: between,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}

// IsSelfSigned reports a leaf that names itself as its issuer and is signed by
// its own key: a stranger's introduction.
func IsSelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) &&
		c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// ParsePEM reads certificates, leaf first.
func ParsePEM(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a %s stands where a certificate should", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "certificate %d cannot be read: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "there is no certificate in PEM form")
	}
	return certs, nil
}

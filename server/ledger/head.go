package ledger

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// OpenHead checks a signed head against the fingerprint of the root that is
// trusted, and reads it. The signature carries its chain (x5c).
func OpenHead(jws, fingerprint string) (Head, error) {
	receipt, err := open("the ledger's head", jws, fingerprint)
	if err != nil {
		return Head{}, err
	}
	return ReadHead(receipt)
}

// OpenReceipt checks a receipt, such as that of a revocation, as OpenHead does, and
// returns what was signed.
func OpenReceipt(jws, fingerprint string) ([]byte, error) {
	return open("the receipt", jws, fingerprint)
}

func open(what, jws, fingerprint string) ([]byte, error) {
	bad := func(why string) ([]byte, error) {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is not signed as it must be: %s", what, why)
	}
	header, _, _ := strings.Cut(jws, ".")
	raw, err := base64.RawURLEncoding.DecodeString(header)
	var h struct {
		Type  string   `json:"typ"`
		Chain []string `json:"x5c"`
	}
	if err != nil || json.Unmarshal(raw, &h) != nil || h.Type != "bivouac-receipt" || len(h.Chain) != 2 {
		return bad("its header names no receipt key and its root")
	}
	var certs [2]*x509.Certificate
	for i, text := range h.Chain {
		der, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			certs[i], err = x509.ParseCertificate(der)
		}
		if err != nil {
			return bad("its certificates cannot be read")
		}
	}
	key, root := certs[0], certs[1]
	switch {
	case !strings.EqualFold(identity.Fingerprint(root), fingerprint):
		return bad("it hangs from the root " + identity.Fingerprint(root) + ", and " + fingerprint + " is trusted")
	case key.CheckSignatureFrom(root) != nil:
		return bad("its key is not certified by that root")
	}
	pub, ok := key.PublicKey.(ed25519.PublicKey)
	if !ok {
		return bad("its key is of another kind")
	}
	s, err := jose.ParseSignedCompact(jws, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return bad("it cannot be read")
	}
	receipt, err := s.Verify(pub)
	if err != nil {
		return bad("the signature does not fit")
	}
	return receipt, nil
}

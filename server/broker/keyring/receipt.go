package keyring

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"sync"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
	"bivouac/server/capability"
)

// receiptKeys are certificates of keys that somebody else holds, by key.
type receiptKeys struct {
	mu    sync.Mutex
	known map[string][]byte
}

// SignReceiptBy signs with a receipt key that somebody else holds, such as Vault:
// the root certifies the key, so that the receipt is checked as every other. sign is
// given exactly what a signature is over.
func (k *Keyring) SignReceiptBy(receipt []byte, key ed25519.PublicKey, sign func(input []byte) ([]byte, error)) (string, error) {
	if len(key) != ed25519.PublicKeySize {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "only Ed25519 keys sign receipts")
	}
	cert, err := k.receiptCertificate(key)
	if err != nil {
		return "", err
	}
	chain := []string{base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(k.rootCert.Raw)}
	return signJWS(held{key, sign}, capability.KeyID(key), receiptType, receipt, chain)
}

// receiptCertificate of another's key, for as long as the root's. It is made once.
func (k *Keyring) receiptCertificate(key ed25519.PublicKey) ([]byte, error) {
	k.receipts.mu.Lock()
	defer k.receipts.mu.Unlock()
	if der, ok := k.receipts.known[string(key)]; ok {
		return der, nil
	}
	der, err := x509.CreateCertificate(nil, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Bivouac receipts"},
		NotBefore: k.rootCert.NotBefore, NotAfter: k.rootCert.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}, k.rootCert, key, k.root)
	if err != nil {
		return nil, err
	}
	if k.receipts.known == nil {
		k.receipts.known = map[string][]byte{}
	}
	k.receipts.known[string(key)] = der
	return der, nil
}

// held is a key of somebody else's, as the signer of a JWS.
type held struct {
	key  ed25519.PublicKey
	sign func([]byte) ([]byte, error)
}

func (h held) Public() *jose.JSONWebKey { return &jose.JSONWebKey{Key: h.key} }

func (h held) Algs() []jose.SignatureAlgorithm { return []jose.SignatureAlgorithm{jose.EdDSA} }

func (h held) SignPayload(input []byte, _ jose.SignatureAlgorithm) ([]byte, error) {
	sig, err := h.sign(input)
	if err == nil && !ed25519.Verify(h.key, input, sig) {
		err = protocol.Errorf(protocol.CodeInternal, "what came back is no signature of the receipt by its key")
	}
	return sig, err
}

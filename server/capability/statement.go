package capability

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"

	"bivouac/edge/protocol"
)

// StatementType is the `typ` header of a key statement.
const StatementType = "bivouac-key"

// KeyTTL is how long a certified signing key lives; a server asks for the next
// one in time.
const KeyTTL = time.Hour

// Statement is the root's word that a key signs capabilities for one server.
type Statement struct {
	KeyID     string
	PublicKey ed25519.PublicKey
	Server    string
	NotBefore time.Time
	NotAfter  time.Time
}

type statementWire struct {
	KeyID     string `json:"kid"`
	PublicKey []byte `json:"pub"`
	Server    string `json:"srv"`
	NotBefore int64  `json:"nbf"`
	NotAfter  int64  `json:"exp"`
}

// KeyID is derived from the public key, so that a statement cannot name another.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Certify signs a statement with the root key. The times are cut to seconds.
func Certify(root ed25519.PrivateKey, server string, pub ed25519.PublicKey, notBefore, notAfter time.Time) (string, error) {
	if len(pub) != ed25519.PublicKeySize || server == "" || !notAfter.After(notBefore) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "signing key not certified: an Ed25519 public key, a server and a lifetime are needed")
	}
	body, err := json.Marshal(statementWire{KeyID(pub), pub, server, notBefore.Unix(), notAfter.Unix()})
	if err != nil {
		return "", err
	}
	return sign(root, KeyID(root.Public().(ed25519.PublicKey)), StatementType, body)
}

// VerifyStatement reads a statement under the pinned root key. Whether it is in
// force at an instant is Statement.InForce.
func VerifyStatement(jws string, root ed25519.PublicKey) (Statement, error) {
	body, err := verify(jws, StatementType, func(id string) (ed25519.PublicKey, bool) {
		return root, id == KeyID(root)
	})
	if err != nil {
		return Statement{}, protocol.Errorf(protocol.CodePermissionDenied, "key statement refused: %w", err)
	}
	var w statementWire
	if err := json.Unmarshal(body, &w); err != nil || len(w.PublicKey) != ed25519.PublicKeySize || w.KeyID != KeyID(w.PublicKey) {
		return Statement{}, protocol.Errorf(protocol.CodePermissionDenied, "key statement refused: its key and key id do not belong together")
	}
	return Statement{w.KeyID, w.PublicKey, w.Server, time.Unix(w.NotBefore, 0), time.Unix(w.NotAfter, 0)}, nil
}

// InForce reports whether the key may verify at an instant.
func (s Statement) InForce(now time.Time) bool {
	return !now.Before(s.NotBefore) && now.Before(s.NotAfter)
}

package identity

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/binary"
	"time"

	"bivouac/edge/protocol"
)

// RecoverStatement is what a device key signs to get a new certificate: bound to
// its purpose, to one deployment and to one challenge.
func RecoverStatement(root *x509.Certificate, challenge []byte) []byte {
	out := append([]byte("bivouac recover v1\n"), Fingerprint(root)...)
	return append(append(out, '\n'), challenge...)
}

// Sizes of a challenge: random bytes, the end of its time, a MAC.
const (
	challengeRandom = 16
	challengeBytes  = challengeRandom + 8 + sha256.Size
)

// Challenges makes and knows challenges of one process without keeping any: each
// is bound to a key and to a time.
type Challenges struct {
	key [32]byte
	ttl time.Duration
}

// NewChallenges are good for ttl each.
func NewChallenges(ttl time.Duration) *Challenges {
	c := &Challenges{ttl: ttl}
	rand.Read(c.key[:])
	return c
}

// Make a challenge for the key with a thumbprint.
func (c *Challenges) Make(thumbprint string, now time.Time) []byte {
	out := make([]byte, challengeRandom, challengeBytes)
	rand.Read(out)
	out = binary.BigEndian.AppendUint64(out, uint64(now.Add(c.ttl).UnixMicro()))
	return append(out, c.mac(thumbprint, out)...)
}

// Check that the holder of a public key (DER, SubjectPublicKeyInfo) signed a
// challenge of ours, in time.
func (c *Challenges) Check(spki, challenge, signature []byte, root *x509.Certificate, now time.Time) error {
	if len(challenge) != challengeBytes {
		return badChallenge("it is not one of this server")
	}
	said, mac := challenge[:challengeRandom+8], challenge[challengeRandom+8:]
	if subtle.ConstantTimeCompare(mac, c.mac(Thumbprint(spki), said)) != 1 {
		return badChallenge("it was given to another key, or by another process of the server")
	}
	if now.UnixMicro() >= int64(binary.BigEndian.Uint64(said[challengeRandom:])) {
		return badChallenge("its time is over")
	}
	key, err := x509.ParsePKIXPublicKey(spki)
	if err != nil {
		return badChallenge("the key cannot be read")
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok || !ed25519.Verify(public, RecoverStatement(root, challenge), signature) {
		return badChallenge("the signature is not by the key of this connection")
	}
	return nil
}

func (c *Challenges) mac(thumbprint string, said []byte) []byte {
	m := hmac.New(sha256.New, c.key[:])
	m.Write(said)
	m.Write([]byte(thumbprint))
	return m.Sum(nil)
}

func badChallenge(why string) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "the answer to the server's challenge is refused: %s; try again", why)
}

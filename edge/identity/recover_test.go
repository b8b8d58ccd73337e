package identity_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
)

// A challenge is answered by the key it was made for, for one deployment, in time,
// and to the process that made it.
func TestChallengeIsBound(t *testing.T) {
	root, other := identitytest.NewRoot().Certificate, identitytest.NewRoot().Certificate
	mine, foreign := identitytest.NewKey(), identitytest.NewKey()
	spki := func(k ed25519.PrivateKey) []byte {
		b, err := x509.MarshalPKIXPublicKey(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	now := time.Now()
	c := identity.NewChallenges(time.Minute)
	challenge := c.Make(identity.Thumbprint(spki(mine)), now)
	sign := func(k ed25519.PrivateKey, root *x509.Certificate, ch []byte) []byte {
		return ed25519.Sign(k, identity.RecoverStatement(root, ch))
	}
	good := sign(mine, root, challenge)
	if err := c.Check(spki(mine), challenge, good, root, now.Add(59*time.Second)); err != nil {
		t.Fatal(err)
	}
	altered := append([]byte(nil), challenge...)
	altered[3] ^= 1
	for name, err := range map[string]error{
		"another key":           c.Check(spki(foreign), challenge, sign(foreign, root, challenge), root, now),
		"signed by another key": c.Check(spki(mine), challenge, sign(foreign, root, challenge), root, now),
		"another deployment":    c.Check(spki(mine), challenge, sign(mine, other, challenge), root, now),
		"the bare challenge":    c.Check(spki(mine), challenge, ed25519.Sign(mine, challenge), root, now),
		"too late":              c.Check(spki(mine), challenge, good, root, now.Add(time.Minute)),
		"altered":               c.Check(spki(mine), altered, sign(mine, root, altered), root, now),
		"of another process":    identity.NewChallenges(time.Minute).Check(spki(mine), challenge, good, root, now),
		"empty":                 c.Check(spki(mine), nil, sign(mine, root, nil), root, now),
	} {
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

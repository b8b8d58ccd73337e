package identity_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
)

const tenant = protocol.TenantID("ten_01jdv3k8x0q6v9w2m4t7y5z1ab")

func TestRunnerIDHangsFromTheKey(t *testing.T) {
	a, b := identitytest.NewKey(), identitytest.NewKey()
	id := identitytest.RunnerID(a)
	var parsed protocol.RunnerID
	if err := parsed.UnmarshalText([]byte(id)); err != nil || parsed != id {
		t.Errorf("%s is no runner id: %v", id, err)
	}
	if identitytest.RunnerID(a) != id || identitytest.RunnerID(b) == id {
		t.Error("the same key must give the same id, another key another")
	}
}

func TestCodesAreToldApartBeforeAnythingIsSent(t *testing.T) {
	root := identitytest.NewRoot()
	code, err := identity.NewCode(identity.CodeJoin, root.Fingerprint(), strings.NewReader("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	text := code.Reveal()
	for _, good := range []string{text, " " + text + "\n", strings.ToUpper(text)} {
		got, err := identity.ParseCode(identity.CodeJoin, good)
		if err != nil || got != code || string(got.Hash()) != string(code.Hash()) {
			t.Errorf("%q: %v", good, err)
		}
	}
	secret := strings.Split(text, "_")[1]
	if shown := code.String(); strings.Contains(shown, secret) {
		t.Errorf("printed as %s", shown)
	}
	for _, bad := range []string{
		"", "join", text[:len(text)-1], text + "0", strings.Replace(text, "join_", "srv_", 1),
		strings.Replace(text, secret, secret[1:], 1), strings.Replace(text, secret, secret[:25]+"1", 1),
		strings.Replace(text, root.Fingerprint(), strings.Repeat("g", 64), 1),
	} {
		if _, err := identity.ParseCode(identity.CodeJoin, bad); protocol.CodeOf(err) != protocol.CodeInvalidArgument || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestChainsHangFromOneRoot(t *testing.T) {
	root, other := identitytest.NewRoot(), identitytest.NewRoot()
	leaf := root.Leaf(identity.RoleRunner, "run_x", tenant).Leaf
	certs := []*x509.Certificate{leaf}
	chains, err := identity.VerifyChain(certs, root.Certificate, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.VerifyChain(certs, other.Certificate, time.Now()); err == nil {
		t.Error("verified under another root")
	}
	if _, err := identity.VerifyChain(certs, root.Certificate, time.Now().Add(48*time.Hour)); err == nil {
		t.Error("verified after its end")
	}
	p, err := identity.FromTLS(&tls.ConnectionState{PeerCertificates: certs, VerifiedChains: chains})
	if err != nil || p.Role != identity.RoleRunner || p.ID != "run_x" || p.Tenant != tenant {
		t.Errorf("%+v %v", p, err)
	}
	p, err = identity.FromTLS(&tls.ConnectionState{PeerCertificates: certs})
	if err != nil || p.Role != identity.RoleNone || p.ID != "" {
		t.Errorf("an unverified certificate names %+v, %v", p, err)
	}
	if again, err := identity.ParsePEM(identitytest.PEM(leaf, root.Certificate)); err != nil || len(again) != 2 || !again[0].Equal(leaf) {
		t.Errorf("PEM: %v", err)
	}
}

func TestSelfSignedIsAStrangersIntroduction(t *testing.T) {
	stranger, err := identity.SelfSigned(identitytest.NewKey(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.ParseCertificate(stranger.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if !identity.IsSelfSigned(own) || identity.IsSelfSigned(identitytest.NewRoot().Leaf(identity.RoleRunner, "run_x", tenant).Leaf) {
		t.Error("a self-signed certificate and one of a root must be told apart")
	}
}

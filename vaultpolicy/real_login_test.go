//go:build linux

package vaultpolicy

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

func newKey(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return pub, key
}

func writePEM(t *testing.T, path, kind string, der []byte, err error) string {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every method of login, as setup makes its role: the broker does its work, and what
// the role is not bound to does not log in.
func TestLogins(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		for method, prepare := range map[string]func(*testing.T, *site) (wrong func(*Config)){
			"token": preparedToken, "jwt": preparedJWT, "cert": preparedCert,
		} {
			t.Run(method, func(t *testing.T) {
				x := newSite(t, s)
				wrong := prepare(t, x)
				if p := x.cfg.problems(false); len(p) > 0 {
					t.Fatal(p)
				}
				if x.setup(t) != 0 {
					t.Error("setup a second time differs")
				}
				v, _ := x.tells(t, quick)
				g, sealed := x.grant(t, v)
				until(t, v, g.ID, "")
				codeIs(t, "mint", mints(t, v, g, sealed), "")
				_, err := x.vault(t, wrong).Credentials(t.Context(), g.Tenant)
				codeIs(t, "another's login", err, protocol.CodeUnavailable)
			})
		}
	})
}

func preparedToken(t *testing.T, x *site) func(*Config) {
	file := filepath.Join(x.cfg.Dir, "token")
	x.cfg.Auth = &Auth{Method: "token", File: file}
	x.setup(t)
	n := x.cfg.names()
	made, err := x.root.Logical().WriteWithContext(t.Context(), "auth/token/create/"+n.BrokerPolicy(), map[string]any{"policies": []string{n.BrokerPolicy(), n.RoutesPolicy()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(made.Auth.ClientToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(x.cfg.Dir, "no-token")
	if err := os.WriteFile(none, []byte("hvs.never-made-0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Auth = &Auth{Method: "token", File: none} }
}

func preparedJWT(t *testing.T, x *site) func(*Config) {
	pub, key := newKey(t)
	file, other := filepath.Join(x.cfg.Dir, "jwt"), filepath.Join(x.cfg.Dir, "other-jwt")
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, audience := range map[string]string{file: "bivouac", other: "somebody"} {
		text, err := jwt.Signed(signer).Claims(jwt.Claims{
			Subject: "broker", Audience: jwt.Audience{audience}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)), IssuedAt: jwt.NewNumericDate(time.Now()),
		}).Serialize()
		if err == nil {
			err = os.WriteFile(name, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	x.cfg.Auth = &Auth{Method: "jwt", Mount: x.cfg.Prefix + "-jwt", File: file, Audiences: []string{"bivouac"}, Subject: "broker"}
	x.cfg = x.cfg.withDefaults(func(string) string { return "" })
	x.setup(t)
	der, err := x509.MarshalPKIXPublicKey(pub)
	text := writePEM(t, filepath.Join(x.cfg.Dir, "jwt.pub"), "PUBLIC KEY", der, err)
	if _, err := x.root.Logical().WriteWithContext(t.Context(), "auth/"+x.cfg.Auth.Mount+"/config", map[string]any{"jwt_validation_pubkeys": []string{text}, "jwt_supported_algs": []string{"EdDSA"}}); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { a := *c.Auth; a.File = other; c.Auth = &a }
}

func preparedCert(t *testing.T, x *site) func(*Config) {
	newAuthority := func(name string) (*x509.Certificate, ed25519.PrivateKey, string) {
		pub, key := newKey(t)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
		file := filepath.Join(x.cfg.Dir, name+".pem")
		writePEM(t, file, "CERTIFICATE", der, err)
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key, file
	}
	// All have the same serial number: it says nothing.
	sign := func(file, name string, by *x509.Certificate, key ed25519.PrivateKey) Auth {
		pub, private := newKey(t)
		out := Auth{CertFile: filepath.Join(x.cfg.Dir, file+".pem"), KeyFile: filepath.Join(x.cfg.Dir, file+".key")}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		}, by, pub, key)
		writePEM(t, out.CertFile, "CERTIFICATE", der, err)
		der, err = x509.MarshalPKCS8PrivateKey(private)
		writePEM(t, out.KeyFile, "PRIVATE KEY", der, err)
		return out
	}
	ours, key, issuer := newAuthority("ours")
	theirs, otherKey, _ := newAuthority("theirs")
	mine := sign("broker", "broker", ours, key)
	namesake, colleague := sign("namesake", "broker", theirs, otherKey), sign("colleague", "colleague", ours, key)
	x.cfg.Auth = &Auth{Method: "cert", Mount: x.cfg.Prefix + "-cert", CertFile: mine.CertFile, KeyFile: mine.KeyFile, IssuerFile: mine.CertFile, CommonName: "broker"}
	x.cfg = x.cfg.withDefaults(func(string) string { return "" })
	if _, err := x.cfg.Plan(x.scope); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("the broker's own certificate as its issuer: %v", err)
	}
	x.cfg.Auth.IssuerFile = issuer
	x.setup(t)
	as := func(who Auth) func(*Config) {
		return func(c *Config) { a := *c.Auth; a.CertFile, a.KeyFile = who.CertFile, who.KeyFile; c.Auth = &a }
	}
	_, err := x.vault(t, as(colleague)).Credentials(t.Context(), authoritytest.NewGrant().Tenant)
	codeIs(t, "another name of the same issuer", err, protocol.CodeUnavailable)
	return as(namesake)
}

// Several brokers over one server: what one makes the other uses at once, and what
// one revokes the other refuses and tells.
func TestTwoBrokers(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		first, _ := x.tells(t, quick)
		second, said := x.tells(t, quick)
		warm, _ := x.grant(t, second)
		until(t, second, warm.ID, "")
		g, sealed := x.grant(t, first)
		codeIs(t, "the other's mint, at once", mints(t, second, g, sealed), "")
		until(t, second, g.ID, "")
		again, err := second.CreateGrant(t.Context(), g)
		if err != nil || string(again) != string(sealed) {
			t.Errorf("the same grant at the other broker is other bytes, or %v", err)
		}
		if _, err := first.RevokeGrant(t.Context(), g.ID); err != nil {
			t.Fatal(err)
		}
		codeIs(t, "the other's mint after the revocation", mints(t, second, g, sealed), protocol.CodePermissionDenied)
		until(t, second, g.ID, protocol.CodePermissionDenied)
		for end := time.Now().Add(time.Minute); said.of(g.ID) == ""; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the other broker tells nobody")
			}
		}
		until(t, second, warm.ID, "")
	})
}

// limited: a rate limit that a namespace cannot have is not left out without a word, and
// the root takes the command that is said; outside a namespace there is nothing to say.
func (x *site) limited(t *testing.T, namespace string) {
	t.Helper()
	cfg := x.cfg
	cfg.TokensPerSecond = 400
	quota := "sys/quotas/rate-limit/" + cfg.names().Prefix + "-mint"
	path := namespace + "/auth/token/create"
	if said := cfg.Unlimited(); !strings.Contains(said, quota+" path="+path+" rate=400 interval=1s") {
		t.Errorf("tokens_per_second in a namespace: %q", said)
	}
	root := x.Root(t)
	if _, err := root.Logical().WriteWithContext(t.Context(), quota, map[string]any{"path": path, "rate": 400, "interval": "1s"}); err != nil {
		t.Error(err)
	} else if _, err := root.Logical().DeleteWithContext(t.Context(), quota); err != nil {
		t.Error(err)
	}
	cfg.Namespace = ""
	if said := cfg.Unlimited(); said != "" {
		t.Errorf("outside a namespace: %q", said)
	}
}

// In a namespace, where the server has them, the broker is as anywhere else.
func TestNamespace(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		name, ok := s.Namespace(t)
		if !ok {
			t.Skipf("%s has no namespaces", p.Name)
		}
		x := newSiteIn(t, s, name)
		v, _ := x.tells(t, quick)
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		codeIs(t, "mint", mints(t, v, g, sealed), "")
		x.revoke(t, g)
		codeIs(t, "mint after the revocation", mints(t, v, g, sealed), protocol.CodePermissionDenied)
		until(t, v, g.ID, protocol.CodePermissionDenied)
		_, err := x.vault(t, func(c *Config) { c.Namespace = "" }).Credentials(t.Context(), g.Tenant)
		codeIs(t, "in another namespace", err, protocol.CodeUnavailable)
		x.limited(t, name)
	})
}

//go:build linux

package vaultpolicy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/issued"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// pki is an engine with an authority and one role, and the authority's certificate.
func (x *site) pki(t *testing.T, keyType string) (from *issued.From, authority string) {
	t.Helper()
	mount := x.mount(t, issued.PKI)
	made := x.write(t, mount+"/root/generate/internal", map[string]any{"common_name": "agents", "key_type": "ec", "ttl": "24h"})
	x.write(t, mount+"/roles/agents", map[string]any{
		"allowed_domains": "agents.example", "allow_subdomains": true, "server_flag": false, "client_flag": true, "key_type": keyType, "no_store": true, "max_ttl": "1h",
	})
	from = (&issued.From{Engine: issued.PKI, Mount: mount, Role: "agents", CommonName: "{agent}.agents.example", KeyType: keyType}).WithDefaults()
	return from, made["certificate"].(string)
}

// mutual is an upstream that says whom it sees. It takes clients of an authority.
func mutual(t *testing.T, authority string, policy tls.ClientAuthType) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(authority)) {
		t.Fatal("no authority")
	}
	s.TLS = &tls.Config{ClientAuth: policy, ClientCAs: pool}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// asks an upstream as the broker does.
func asksMutual(t *testing.T, s *httptest.Server, c issued.Credential) (string, error) {
	t.Helper()
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := egress.NewClient(egress.Config{Name: "destination d", Base: base, AllowPrivate: true, Certificate: c.Certificate,
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})})
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseIdleConnections()
	res, err := h.Get(s.URL)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// A certificate is signed for one action and a key of the broker's own; an upstream
// knows the agent by it, for two minutes.
func TestCertificateIssues(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		for _, kind := range []string{issued.KeyEC, issued.KeyRSA, issued.KeyEd25519} {
			x := newSite(t, s)
			from, authority := x.pki(t, kind)
			i := x.issuing(t, from)
			c := i.issued(t)
			leaf := c.Certificate.Leaf
			if leaf.Subject.CommonName != "assistant.agents.example" || time.Until(leaf.NotAfter) > 2*time.Minute+time.Second || time.Until(leaf.NotAfter) < time.Minute {
				t.Errorf("%s until %s", leaf.Subject, leaf.NotAfter)
			}
			if again := i.issued(t); again.Certificate.Leaf.SerialNumber.Cmp(leaf.SerialNumber) == 0 || again.Certificate.PrivateKey.(interface {
				Equal(crypto.PrivateKey) bool
			}).Equal(c.Certificate.PrivateKey) {
				t.Error("two actions share a certificate or a key")
			}
			if who, err := asksMutual(t, mutual(t, authority, tls.RequireAndVerifyClientCert), c); err != nil || who != "assistant.agents.example" {
				t.Errorf("%s: %q %v", kind, who, err)
			}
			// An upstream of another authority, and one that does not ask.
			_, other := x.pki(t, kind)
			if who, err := asksMutual(t, mutual(t, other, tls.RequireAndVerifyClientCert), c); err == nil {
				t.Errorf("an upstream of another authority saw %q", who)
			}
			if who, err := asksMutual(t, mutual(t, authority, tls.NoClientCert), c); err == nil || !strings.Contains(err.Error(), "does not ask for a client certificate") {
				t.Errorf("an upstream that does not ask saw %q: %v", who, err)
			}
			if certs, err := x.root.Logical().ListWithContext(t.Context(), from.Mount+"/certs"); err != nil || len(certs.Data["keys"].([]any)) > 1 { // its own
				t.Errorf("certificates are stored: %v %v", certs, err)
			}
			i.allRefusals(t, from.Path())
			i.revokedRefuses(t)
		}
	})
}

// What an admin's PKI may lack, and what its token may not.
func TestCertificateCannotIssue(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		from, _ := x.pki(t, issued.KeyEC)
		from.CommonName = "reports.agents.example"
		i := x.issuing(t, from)
		i.issued(t)
		o, err := i.v.open(t.Context(), authoritytest.Use(i.grant, i.sealed, issuedName))
		if err != nil {
			t.Fatal(err)
		}
		put := http.MethodPut
		csr := func(change map[string]any) map[string]any {
			body := map[string]any{"csr": "x", "common_name": from.CommonName, "ttl": "120s"}
			for k, v := range change {
				body[k] = v
			}
			return body
		}
		x.allRefused(t, "the grant", o.token, map[string]attempt{
			"signs another name":       {put, from.Path(), csr(map[string]any{"common_name": "admin.agents.example"})},
			"adds names":               {put, from.Path(), csr(map[string]any{"alt_names": "admin.agents.example"})},
			"signs for an hour":        {put, from.Path(), csr(map[string]any{"ttl": "1h"})},
			"signs until a day":        {put, from.Path(), csr(map[string]any{"not_after": "9999-12-31T23:59:59Z"})},
			"has a key made":           {put, from.Mount + "/issue/agents", csr(nil)},
			"signs whatever is asked":  {put, from.Mount + "/sign-verbatim", csr(nil)},
			"signs with another role":  {put, from.Mount + "/sign/other", csr(nil)},
			"signs an authority":       {put, from.Mount + "/root/sign-intermediate", csr(nil)},
			"reads the role":           {http.MethodGet, from.RolePath(), nil},
			"revokes what others have": {put, from.Mount + "/revoke", map[string]any{"serial_number": "00"}},
		})
		x.write(t, from.RolePath(), map[string]any{"allowed_domains": "elsewhere.example", "key_type": "ec"})
		i.refuses(t, "a role for other names", protocol.CodeFailedPrecondition, issuedName, "vault read "+from.RolePath())
		x.write(t, from.RolePath(), map[string]any{"allowed_domains": "agents.example", "allow_subdomains": true, "key_type": "rsa"})
		i.refuses(t, "a role for other keys", protocol.CodeFailedPrecondition, issuedName, "vault read "+from.RolePath())
		if _, err := x.root.Logical().DeleteWithContext(t.Context(), from.RolePath()); err != nil {
			t.Fatal(err)
		}
		i.refuses(t, "no role", protocol.CodeFailedPrecondition, issuedName, "vault read "+from.RolePath())
		x.write(t, from.RolePath(), map[string]any{"allowed_domains": "agents.example", "allow_subdomains": true, "key_type": "ec", "no_store": true})
		i.issued(t)
	})
}

// What comes back is held against what was asked for.
func TestPair(t *testing.T) {
	i := issue{from: (&issued.From{Engine: issued.PKI, Role: "r", CommonName: "a.example"}).WithDefaults()}
	mine, err := clientKey(issued.KeyEC)
	if err != nil {
		t.Fatal(err)
	}
	other, err := clientKey(issued.KeyEC)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(name string, pub any, ca bool, life time.Duration) string {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(life), IsCA: ca, BasicConstraintsValid: true,
		}, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}}, pub, other)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	pub := mine.(*ecdsa.PrivateKey).Public()
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"as asked":        {sign("a.example", pub, false, 2*time.Minute), ""},
		"another key":     {sign("a.example", other.Public(), false, time.Minute), "another key"},
		"another name":    {sign("b.example", pub, false, time.Minute), "b.example"},
		"an authority":    {sign("a.example", pub, true, time.Minute), "authority"},
		"for a year":      {sign("a.example", pub, false, 8760*time.Hour), "longer than"},
		"no certificate":  {"nothing", "no certificate"},
		"nothing at all":  {"", "no certificate"},
		"a broken inside": {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "x509"},
	} {
		got, err := i.pair(mine, "a.example", []string{c.text})
		if (c.want == "") != (err == nil && got != nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

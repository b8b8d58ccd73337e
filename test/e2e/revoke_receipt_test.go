//go:build linux

package e2e

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/server/api/apiv1"
)

// receipt is what a revocation signs.
type receipt struct {
	Kind, Grant, Reason string
	RevokedAt           time.Time `json:"revoked_at"`
	Layers              []struct {
		Name, Probe, Detail string
		Gone                bool
		Took                time.Duration `json:"took_ns"`
	}
}

// revoke takes a grant back through the command line and returns the receipt, which
// must hang from the root that the login pins.
func (p *person) revoke(grant string) receipt {
	p.t.Helper()
	file := p.Path("receipt-" + grant)
	out := p.must("revoke", grant, "--reason", "measured", "--receipt", file)
	signed, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	payload, err := verifyReceipt(strings.TrimSpace(string(signed)), p.root())
	if err != nil {
		p.t.Fatalf("the receipt: %v", err)
	}
	var r receipt
	if err := json.Unmarshal(payload, &r); err != nil {
		p.t.Fatal(err)
	}
	if r.Kind != "revocation" || r.Grant != grant || r.Reason != "measured" || r.RevokedAt.IsZero() {
		p.t.Errorf("the receipt says %s", payload)
	}
	gone := map[string]bool{}
	for _, l := range r.Layers {
		gone[l.Name] = l.Gone
		p.t.Logf("layer %-10s gone=%t after %5.1f ms  %s: %s", l.Name, l.Gone, float64(l.Took)/1e6, l.Probe, l.Detail)
		if !strings.Contains(out, l.Name) {
			p.t.Errorf("the command does not print the layer %s:\n%s", l.Name, out)
		}
	}
	for _, layer := range []string{"server", "turns", "broker"} {
		if !gone[layer] {
			p.t.Errorf("the layer %s is not gone: %+v", layer, r.Layers)
		}
	}
	p.forged(string(signed), payload)
	return r
}

// root is the deployment's root certificate, as far as the login's pin proves it.
func (p *person) root() *x509.Certificate {
	p.t.Helper()
	res, err := p.api.Credentials.GetSealRecipient(p.t.Context(), &apiv1.GetSealRecipientRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	root, err := x509.ParseCertificate(res.GetRootCertificate())
	if err != nil {
		p.t.Fatal(err)
	}
	var login struct {
		Root string `json:"root_fingerprint"`
	}
	b, err := os.ReadFile(filepath.Join(p.login, "login.json"))
	if err == nil {
		err = json.Unmarshal(b, &login)
	}
	if err != nil || identity.Fingerprint(root) != login.Root {
		p.t.Fatalf("the root is not the pinned one: %v", err)
	}
	return root
}

// verifyReceipt needs nothing but the root.
func verifyReceipt(signed string, root *x509.Certificate) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(signed, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	chains, err := jws.Signatures[0].Protected.Certificates(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil, err
	}
	return jws.Verify(chains[0][0].PublicKey)
}

// forged: a changed receipt, and one of another deployment, do not verify.
func (p *person) forged(signed string, payload []byte) {
	p.t.Helper()
	part := strings.Split(strings.TrimSpace(signed), ".")
	for i := range part {
		bad := append([]string(nil), part...)
		bad[i] = bad[i][:len(bad[i])/2] + flip(bad[i][len(bad[i])/2]) + bad[i][len(bad[i])/2+1:]
		if _, err := verifyReceipt(strings.Join(bad, "."), p.root()); err == nil {
			p.t.Errorf("a receipt with a changed part %d verifies: %s", i, payload)
		}
	}
	if _, err := verifyReceipt(strings.TrimSpace(signed), identitytest.NewRoot().Certificate); err == nil {
		p.t.Error("the receipt verifies under another root")
	}
}

func flip(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

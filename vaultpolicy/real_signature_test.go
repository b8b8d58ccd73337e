//go:build linux

package vaultpolicy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/issued"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// keyTypes of transit for algorithms.
var keyTypes = map[string]string{issued.Ed25519: "ed25519", issued.ECDSAP256: "ecdsa-p256", issued.RSAPKCS1: "rsa-2048", issued.HMACSHA256: "aes256-gcm96"}

// transit is an engine with one key for an algorithm.
func (x *site) transit(t *testing.T, algorithm string) *issued.From {
	t.Helper()
	mount := x.mount(t, issued.Transit)
	x.write(t, mount+"/keys/partner", map[string]any{"type": keyTypes[algorithm]})
	return (&issued.From{Engine: issued.Transit, Mount: mount, Key: "partner", Algorithm: algorithm, KeyID: "bivouac-1"}).WithDefaults()
}

// A real request is signed by transit, in every algorithm, as an upstream verifies it;
// whatever is changed on the way, or by whom, does not verify.
func TestSignatureIssues(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		for _, algorithm := range issued.Algorithms {
			x := newSite(t, s)
			i := x.issuing(t, x.transit(t, algorithm))
			c := i.issued(t)
			request := func() *http.Request {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://Partner.example:443/v1/orders%2F7?a=b&c=%20", strings.NewReader(`{"sum":7}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				if err := i.from.Put(t.Context(), r, c, "destination partner"); err != nil {
					t.Fatal(err)
				}
				return r
			}
			verifies := x.verifier(t, i.from)
			if err := verifies(request()); err != nil {
				t.Errorf("%s: %v", algorithm, err)
			}
			if one, two := request(), request(); one.Header.Get("Signature") == two.Header.Get("Signature") {
				t.Error("two requests have one signature: the nonce is missing")
			}
			for what, change := range map[string]func(*http.Request){
				"method": func(r *http.Request) { r.Method = http.MethodPut },
				"host":   func(r *http.Request) { r.URL.Host = "other.example" },
				"path":   func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/v1/orders/8", "" },
				"query":  func(r *http.Request) { r.URL.RawQuery = "a=c" },
				"body":   func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{"sum":8}`)) },
				"time": func(r *http.Request) {
					r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), "created=1", "created=2", 1))
				},
			} {
				r := request()
				change(r)
				if verifies(r) == nil {
					t.Errorf("%s: another %s verifies", algorithm, what)
				}
			}
			i.allRefusals(t, i.from.Path())
			c = i.issued(t)
			i.revokedRefuses(t)
			r, _ := http.NewRequest(http.MethodGet, "https://partner.example/", nil)
			if err := i.from.Put(t.Context(), r, c, "destination partner"); protocol.CodeOf(err) != protocol.CodePermissionDenied || r.Header.Get("Signature") != "" {
				t.Errorf("a grant that ended in the middle signs: %v", err)
			}
		}
	})
}

// What an admin's key may lack, and what its token may not.
func TestSignatureCannotIssue(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		i := x.issuing(t, x.transit(t, issued.Ed25519))
		o, err := i.v.open(t.Context(), authoritytest.Use(i.grant, i.sealed, issuedName))
		if err != nil {
			t.Fatal(err)
		}
		put, m := http.MethodPut, i.from.Mount
		text := map[string]any{"input": "AAAA", "plaintext": "AAAA"}
		x.allRefused(t, "the grant", o.token, map[string]attempt{
			"signs with another key":   {put, m + "/sign/other", text},
			"signs a digest":           {put, i.from.Path(), map[string]any{"input": "AAAA", "prehashed": true}},
			"signs many":               {put, i.from.Path(), map[string]any{"batch_input": []map[string]any{{"input": "AAAA"}}}},
			"signs with an old one":    {put, i.from.Path(), map[string]any{"input": "AAAA", "key_version": 1}},
			"makes a code of it":       {put, m + "/hmac/partner", text},
			"encrypts":                 {put, m + "/encrypt/partner", text},
			"decrypts":                 {put, m + "/decrypt/partner", map[string]any{"ciphertext": "vault:v1:AAAA"}},
			"exports":                  {http.MethodGet, m + "/export/signing-key/partner", nil},
			"backs up":                 {http.MethodGet, m + "/backup/partner", nil},
			"reads the key":            {http.MethodGet, i.from.RolePath(), nil},
			"rotates":                  {put, i.from.RolePath() + "/rotate", nil},
			"makes keys":               {put, m + "/keys/mine", map[string]any{"type": "ed25519"}},
			"signs Bivouac's receipts": {put, i.v.names.Transit + "/sign/" + i.v.names.ReceiptKey(), text},
		})
		i.issued(t)
		wrong := *i.from
		wrong.Algorithm, i.from = issued.RSAPKCS1, &wrong
		i.refuses(t, "RSA with a key of ed25519", protocol.CodeFailedPrecondition, issuedName, "transit key partner", "vault read "+i.from.RolePath())
		wrong.Algorithm = issued.Ed25519
		i.issued(t)
		x.write(t, i.from.RolePath()+"/config", map[string]any{"deletion_allowed": true})
		if _, err := x.root.Logical().DeleteWithContext(t.Context(), i.from.RolePath()); err != nil {
			t.Fatal(err)
		}
		i.refuses(t, "no key", protocol.CodeFailedPrecondition, issuedName, "vault read "+i.from.RolePath())
		x.write(t, i.from.RolePath(), map[string]any{"type": "ed25519"})
		i.issued(t)
	})
}

var inputForm = regexp.MustCompile(`^sig1=(\(([^)]*)\);created=\d+;expires=\d+;nonce="[A-Z2-7]{26}";alg="([^"]+)";keyid="bivouac-1")$`)

// verifier is an upstream's own reading of RFC 9421, with the key that the admin gave
// it.
func (x *site) verifier(t *testing.T, from *issued.From) func(*http.Request) error {
	t.Helper()
	check := x.checks(t, from)
	return func(r *http.Request) error {
		said := inputForm.FindStringSubmatch(r.Header.Get("Signature-Input"))
		if said == nil || said[3] != from.Algorithm {
			return fmt.Errorf("the input is %q", r.Header.Get("Signature-Input"))
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		if want := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"; r.Header.Get("Content-Digest") != want {
			return errors.New("the digest is not the body's")
		}
		values := map[string]string{
			`"@method"`: r.Method, `"@authority"`: strings.TrimSuffix(strings.ToLower(r.URL.Host), ":443"), `"@path"`: r.URL.EscapedPath(), `"@query"`: "?" + r.URL.RawQuery,
			`"content-type"`: "application/json", `"content-digest"`: r.Header.Get("Content-Digest"),
		}
		base := ""
		for name := range strings.FieldsSeq(said[2]) {
			base += name + ": " + values[name] + "\n"
			delete(values, name)
		}
		if len(values) > 0 {
			return fmt.Errorf("not signed: %v", values)
		}
		text, ok := strings.CutPrefix(r.Header.Get("Signature"), "sig1=:")
		signature, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(text, ":"))
		if err != nil || !ok {
			return errors.New("it is no signature")
		}
		return check([]byte(base+`"@signature-params": `+said[1]), signature)
	}
}

// checks signatures with what the server shows of the key; codes are the server's to
// check.
func (x *site) checks(t *testing.T, from *issued.From) func(text, signature []byte) error {
	t.Helper()
	bad := errors.New("the signature is another's")
	if from.Algorithm == issued.HMACSHA256 {
		return func(text, signature []byte) error {
			a := x.write(t, from.Mount+"/verify/"+from.Key+"/sha2-256", map[string]any{"input": base64.StdEncoding.EncodeToString(text), "hmac": "vault:v1:" + base64.StdEncoding.EncodeToString(signature)})
			if a["valid"] != true {
				return bad
			}
			return nil
		}
	}
	s, err := x.root.Logical().ReadWithContext(t.Context(), from.RolePath())
	if err != nil {
		t.Fatal(err)
	}
	text := s.Data["keys"].(map[string]any)["1"].(map[string]any)["public_key"].(string)
	if from.Algorithm == issued.Ed25519 {
		pub, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return func(text, signature []byte) error {
			if !ed25519.Verify(pub, text, signature) {
				return bad
			}
			return nil
		}
	}
	block, _ := pem.Decode([]byte(text))
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return func(text, signature []byte) error {
		sum := sha256.Sum256(text)
		switch k := pub.(type) {
		case *rsa.PublicKey:
			return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature)
		case *ecdsa.PublicKey:
			if len(signature) == 64 && ecdsa.Verify(k, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
				return nil
			}
		}
		return bad
	}
}

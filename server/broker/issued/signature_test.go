package issued

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The text that is signed is that of RFC 9421, to the letter.
func TestSignatureBase(t *testing.T) {
	f := (&From{Engine: Transit, Key: "partner", KeyID: "k-1"}).WithDefaults()
	var signed string
	c := Credential{SignFunc: func(_ context.Context, text []byte) ([]byte, error) {
		signed = string(text)
		return []byte("signature"), nil
	}}
	r, err := http.NewRequest(http.MethodPost, "http://Example.com:80/foo%20bar?param=Value&Pet=dog", strings.NewReader(`{"hello": "world"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if err := f.sign(t.Context(), r, c, time.Unix(1618884473, 0)); err != nil {
		t.Fatal(err)
	}
	input, nonce := r.Header.Get("Signature-Input"), ""
	if _, rest, ok := strings.Cut(input, `nonce="`); ok {
		nonce, _, _ = strings.Cut(rest, `"`)
	}
	// The digest is the example of RFC 9530, appendix B, for this body.
	want := `"@method": POST
"@authority": example.com
"@path": /foo%20bar
"@query": ?param=Value&Pet=dog
"content-type": application/json
"content-digest": sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:
"@signature-params": ("@method" "@authority" "@path" "@query" "content-type" "content-digest");created=1618884473;expires=1618884533;nonce="` + nonce + `";alg="ed25519";keyid="k-1"`
	if signed != want || len(nonce) != 26 {
		t.Errorf("signed:\n%s\nwant:\n%s", signed, want)
	}
	if r.Header.Get("Signature") != "sig1=:c2lnbmF0dXJl:" || !strings.HasSuffix(want, strings.TrimPrefix(input, "sig1=")) {
		t.Errorf("%v", r.Header)
	}
	bare, err := http.NewRequest(http.MethodGet, "https://example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.sign(t.Context(), bare, c, time.Unix(1, 0)); err != nil || bare.Header.Get("Content-Digest") != "" || !strings.HasPrefix(signed, "\"@method\": GET\n\"@authority\": example.com\n\"@path\": /\n\"@query\": ?\n\"@signature-params\": ") {
		t.Errorf("without a body: %v %s", err, signed)
	}
}

// What was not issued as its engine does is not sent. The twins are above and in
// vaultpolicy.
func TestPutFailsClosed(t *testing.T) {
	for name, f := range map[string]*From{
		"database": {Engine: Database, Role: "r", UsernameHeader: "X-User", PasswordHeader: "X-Key"},
		"pki":      {Engine: PKI, Role: "r", CommonName: "x"}, "transit": {Engine: Transit, Key: "k"},
	} {
		r, err := http.NewRequest(http.MethodGet, "https://example.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.WithDefaults().Put(t.Context(), r, Credential{}, "destination d"); err == nil || len(r.Header) > 0 {
			t.Errorf("%s: %v %v", name, err, r.Header)
		}
	}
	f := &From{Engine: Database, Role: "r", UsernameHeader: "X-User", PasswordHeader: "X-Key"}
	c, err := Login("v-reports", "p4ss-word-0123")
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest(http.MethodGet, "https://example.com/", nil)
	if err := f.Put(t.Context(), r, c, "destination d"); err != nil || r.Header.Get("X-User") != "v-reports" || r.Header.Get("X-Key") != "p4ss-word-0123" {
		t.Errorf("%v %v", err, r.Header)
	}
}

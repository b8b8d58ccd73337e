package issued

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Algorithms of HTTP message signatures (RFC 9421, 3.3) that transit can make.
const (
	Ed25519      = "ed25519"
	ECDSAP256    = "ecdsa-p256-sha256"
	RSAPKCS1     = "rsa-v1_5-sha256"
	HMACSHA256   = "hmac-sha256"
	signatureFor = time.Minute // how long an upstream may take one for fresh
)

// Algorithms that a file may name.
var Algorithms = []string{Ed25519, ECDSAP256, RSAPKCS1, HMACSHA256}

// sign puts a signature of the request into it: of its method, host, path, query and,
// where it has a body, the body's digest (RFC 9421, RFC 9530). Who verifies it knows
// that nothing of these was changed, when it was made, and by its nonce that it was
// not sent again.
func (f *From) sign(ctx context.Context, r *http.Request, c Credential, now time.Time) error {
	components := []string{"@method", "@authority", "@path", "@query"}
	digest, err := contentDigest(r)
	if err != nil {
		return err
	}
	if digest != "" {
		r.Header.Set("Content-Digest", digest)
		components = append(components, "content-type", "content-digest")
	}
	params := fmt.Sprintf(`("%s");created=%d;expires=%d;nonce="%s";alg="%s";keyid="%s"`,
		strings.Join(components, `" "`), now.Unix(), now.Add(signatureFor).Unix(), rand.Text(), f.Algorithm, f.KeyID)
	signature, err := c.SignFunc(ctx, []byte(signatureBase(r, components, params)))
	if err != nil {
		return err
	}
	r.Header.Set("Signature-Input", "sig1="+params)
	r.Header.Set("Signature", "sig1=:"+base64.StdEncoding.EncodeToString(signature)+":")
	return nil
}

// contentDigest of a body; empty without one.
func contentDigest(r *http.Request) (string, error) {
	if r.GetBody == nil {
		if r.Body != nil && r.Body != http.NoBody {
			return "", protocol.Errorf(protocol.CodeInternal, "a body that can be read once alone cannot be signed")
		}
		return "", nil
	}
	body, err := r.GetBody()
	if err != nil {
		return "", err
	}
	defer body.Close() // it is in memory
	h := sha256.New()
	if _, err := io.Copy(h, body); err != nil {
		return "", err
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(h.Sum(nil)) + ":", nil
}

// signatureBase is what is signed (RFC 9421, 2.5).
func signatureBase(r *http.Request, components []string, params string) string {
	var b strings.Builder
	for _, name := range components {
		fmt.Fprintf(&b, "\"%s\": %s\n", name, component(r, name))
	}
	return b.String() + `"@signature-params": ` + params
}

// component of a request (RFC 9421, 2.1 and 2.2).
func component(r *http.Request, name string) string {
	switch name {
	case "@method":
		return r.Method
	case "@authority":
		host := strings.ToLower(r.URL.Host)
		if port := map[string]string{"https": ":443", "http": ":80"}[r.URL.Scheme]; strings.HasSuffix(host, port) {
			host = strings.TrimSuffix(host, port)
		}
		return host
	case "@path":
		if p := r.URL.EscapedPath(); p != "" {
			return p
		}
		return "/"
	case "@query":
		return "?" + r.URL.RawQuery
	}
	return textproto.TrimString(r.Header.Get(name))
}

// Hidden is what Put put into a request that must not come back in an answer, beside
// the credential itself: a signature is good for the request until it expires. INV-17.
func (f *From) Hidden(r *http.Request) (out []secret.Value) {
	text, signed := strings.CutPrefix(r.Header.Get("Signature"), "sig1=:")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(text, ":"))
	if f.Engine != Transit || !signed || err != nil {
		return nil
	}
	for _, form := range []string{base64.RawStdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw), hex.EncodeToString(raw)} {
		if v, err := secret.New(form); err == nil {
			out = append(out, v)
		}
	}
	return out
}

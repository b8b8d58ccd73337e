package capability

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
)

// Type is the `typ` header of a capability.
const Type = "bivouac-cap"

// MaxTTL bounds every capability: minutes, not hours.
const MaxTTL = 2 * time.Minute

// MaxToken bounds what Verify even looks at.
const MaxToken = 64 << 10

// wire is Claims with its instants as Unix seconds.
type wire struct {
	Claims
	IssuedAt  int64 `json:"iat"`
	ExpiresAt int64 `json:"exp"`
	Deadline  int64 `json:"dln,omitempty"`
}

// Sign makes the compact JWS of the claims. Claims that a broker could only
// refuse are refused here.
func (k *Key) Sign(c Claims) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	w := wire{Claims: c, IssuedAt: c.IssuedAt.Unix(), ExpiresAt: c.ExpiresAt.Unix()}
	if !c.Deadline.IsZero() {
		w.Deadline = c.Deadline.Unix()
	}
	body, err := json.Marshal(w)
	if err != nil {
		return "", err
	}
	return sign(k.Private, k.ID, Type, body)
}

func (c Claims) check() error {
	bad := func(what string) error {
		return protocol.Errorf(protocol.CodeInternal, "capability not signed: %s", what)
	}
	ttl := c.ExpiresAt.Sub(c.IssuedAt)
	switch {
	case c.ID == "" || c.Audience == "" || c.Presenter == "":
		return bad("id, audience or presenter is missing")
	case c.Tenant == "" || c.Principal == "" || c.Session == "" || c.Turn == "" || c.Instance == "":
		return bad("tenant, principal, instance, session or turn is missing")
	case c.Fence <= 0 || c.Generation <= 0:
		return bad("fence or generation is missing")
	case ttl <= 0 || ttl > MaxTTL:
		return bad("it must live longer than zero and at most " + MaxTTL.String())
	case c.Action != "" && c.ArgsDigest == "":
		return bad("an action capability names no arguments digest")
	}
	return nil
}

// KeyFunc finds the certified public key with an id; ok is false for none.
type KeyFunc func(id string) (key ed25519.PublicKey, ok bool)

// Expect is what the presenter's connection and the broker's clock say.
type Expect struct {
	Audience  string    // the broker's pool
	Presenter string    // thumbprint of the connection's peer
	Now       time.Time // feed time plus elapsed
}

// Verify proves signature, audience, presenter and time. A key that keys does not
// know is the code unauthenticated: whether its word may still come is the
// caller's to judge. What floors, paths,
// budgets and the request itself say is the broker's to check.
func Verify(token string, keys KeyFunc, e Expect) (Claims, error) {
	refuse := func(format string, args ...any) (Claims, error) {
		return Claims{}, protocol.Errorf(protocol.CodePermissionDenied, "capability refused: "+format, args...)
	}
	if len(token) > MaxToken {
		return refuse("longer than %d bytes", MaxToken)
	}
	body, err := verify(token, Type, keys)
	if errors.Is(err, errUncertified) {
		return Claims{}, protocol.Errorf(protocol.CodeUnauthenticated, "capability refused: %w", err)
	}
	if err != nil {
		return refuse("%w", err)
	}
	var w wire
	if err := json.Unmarshal(body, &w); err != nil {
		return refuse("its claims cannot be read")
	}
	c := w.Claims
	c.IssuedAt, c.ExpiresAt = time.Unix(w.IssuedAt, 0), time.Unix(w.ExpiresAt, 0)
	if w.Deadline != 0 {
		c.Deadline = time.Unix(w.Deadline, 0)
	}
	if err := c.check(); err != nil {
		return refuse("its claims are incomplete")
	}
	switch {
	case c.Audience != e.Audience:
		return refuse("it is for broker pool %q, this is %q", c.Audience, e.Audience)
	case c.Presenter != e.Presenter:
		return refuse("it belongs to another key than the one that presents it")
	case !e.Now.Before(c.ExpiresAt):
		return refuse("it expired at %s", c.ExpiresAt.UTC().Format(time.RFC3339))
	case e.Now.Add(MaxTTL).Before(c.IssuedAt):
		return refuse("it was issued in the future")
	}
	return c, nil
}

// sign makes a compact JWS with one EdDSA signature.
func sign(key ed25519.PrivateKey, kid, typ string, body []byte) (string, error) {
	opts := (&jose.SignerOptions{}).WithType(jose.ContentType(typ)).WithHeader("kid", kid)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, opts)
	if err != nil {
		return "", err
	}
	sig, err := s.Sign(body)
	if err != nil {
		return "", err
	}
	return sig.CompactSerialize()
}

// errUncertified: no statement of the root is known for the key.
var errUncertified = errors.New("not certified here")

var errSignature = errors.New("the signature does not verify under a certified key")

// verify reads a compact JWS of one type; the algorithm is fixed.
func verify(token, typ string, keys KeyFunc) ([]byte, error) {
	sig, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, errors.New("it is no EdDSA signature in compact form")
	}
	h := sig.Signatures[0].Protected
	if t, _ := h.ExtraHeaders[jose.HeaderType].(string); t != typ {
		return nil, errors.New("it is of type " + clip(t) + ", not " + typ)
	}
	key, ok := keys(h.KeyID)
	if !ok {
		return nil, fmt.Errorf("its key %s is %w", clip(h.KeyID), errUncertified)
	}
	body, err := sig.Verify(key)
	if err != nil {
		return nil, errSignature
	}
	return body, nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return `"` + s + `"`
}

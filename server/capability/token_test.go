package capability

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

var t0 = time.Unix(1_800_000_000, 0)

func newKey(t *testing.T) *Key {
	t.Helper()
	k, err := NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func claims() Claims {
	return Claims{
		ID: "cap_01jdv3k8x0q6v9w2m4t7y5z1ab", Audience: "default", Tenant: "ten_01jdv3k8x0q6v9w2m4t7y5z1ab", TenantName: "local", Principal: "prn_01jdv3k8x0q6v9w2m4t7y5z1ab",
		Agent: "assistant", AgentDigest: "sha256:a", Instance: "ins_01jdv3k8x0q6v9w2m4t7y5z1ab", Generation: 3, Session: "ses_01jdv3k8x0q6v9w2m4t7y5z1ab",
		Turn: "trn_01jdv3k8x0q6v9w2m4t7y5z1ab", Action: "act_01jdv3k8x0q6v9w2m4t7y5z1ab", Fence: 1<<32 | 7, Grant: "grt_01jdv3k8x0q6v9w2m4t7y5z1ab", SealedGrant: []byte{1, 2, 3},
		Presenter: "thumb", Models: []string{"m"}, Destinations: []string{"d"}, Tools: []string{"http:x"}, Egress: []string{"p"},
		Slice: "slc_01jdv3k8x0q6v9w2m4t7y5z1ab", SliceBoot: "b", SliceCeiling: 5, PolicyDigest: "p", ArgsDigest: "sha256:z",
		DataBoundary: "eu", TraceParent: "00-1-2-01",
		IssuedAt: t0, ExpiresAt: t0.Add(time.Minute), Deadline: t0.Add(time.Hour),
	}
}

func only(k *Key) KeyFunc {
	return func(id string) (ed25519.PublicKey, bool) { return k.Public(), id == k.ID }
}

var here = Expect{Audience: "default", Presenter: "thumb", Now: t0.Add(time.Second)}

func TestRoundTripKeepsEveryClaim(t *testing.T) {
	k := newKey(t)
	tok, err := k.Sign(claims())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Verify(tok, only(k), here)
	if err != nil {
		t.Fatal(err)
	}
	if want := claims(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A claim that the fixture leaves zero would pass the comparison unseen.
	v := reflect.ValueOf(claims())
	for i := range v.NumField() {
		if f := v.Type().Field(i).Name; v.Field(i).IsZero() && f != "Attempt" {
			t.Errorf("the fixture leaves %s zero", f)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	k, other := newKey(t), newKey(t)
	tok, err := k.Sign(claims())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(tok, ".")
	cases := []struct {
		name  string
		token string
		keys  KeyFunc
		e     Expect
		want  string
	}{
		{"another pool", tok, only(k), Expect{"other", "thumb", here.Now}, "pool"},
		{"a thief's key", tok, only(k), Expect{"default", "thief", here.Now}, "another key"},
		{"expired", tok, only(k), Expect{"default", "thumb", t0.Add(time.Minute)}, "expired"},
		{"from the future", tok, only(k), Expect{"default", "thumb", t0.Add(-MaxTTL - time.Second)}, "future"},
		{"unknown key", tok, only(other), here, "not certified"},
		{"forged by another key", tok, func(string) (ed25519.PublicKey, bool) { return other.Public(), true }, here, "signature"},
		{"changed claims", parts[0] + "." + parts[1][:len(parts[1])-4] + "AAAA." + parts[2], only(k), here, "signature"},
		{"garbage", "not a token", only(k), here, "compact"},
		{"too long", tok + strings.Repeat("a", MaxToken), only(k), here, "longer"},
	}
	for _, c := range cases {
		_, err := Verify(c.token, c.keys, c.e)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		want := protocol.CodePermissionDenied
		if c.name == "unknown key" {
			want = protocol.CodeUnauthenticated
		}
		if protocol.CodeOf(err) != want {
			t.Errorf("%s: code %s", c.name, protocol.CodeOf(err))
		}
	}
	if _, err := Verify(tok, only(k), here); err != nil {
		t.Errorf("the positive twin: %v", err)
	}
}

func TestAStatementIsNoCapability(t *testing.T) {
	root, k := newKey(t), newKey(t)
	st, err := Certify(root.Private, "srv", k.Public(), t0, t0.Add(KeyTTL))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(st, only(root), here); err == nil || !strings.Contains(err.Error(), "type") {
		t.Errorf("a statement passed as a capability: %v", err)
	}
	if got, err := VerifyStatement(st, root.Public()); err != nil || got.KeyID != k.ID || got.Server != "srv" || !bytes.Equal(got.PublicKey, k.Public()) {
		t.Errorf("statement: %+v, %v", got, err)
	}
	if _, err := VerifyStatement(st, k.Public()); err == nil {
		t.Error("a statement verified under a key that is not the root")
	}
}

func TestStatementInForce(t *testing.T) {
	s := Statement{NotBefore: t0, NotAfter: t0.Add(time.Hour)}
	for at, want := range map[time.Duration]bool{-time.Second: false, 0: true, time.Hour - 1: true, time.Hour: false} {
		if got := s.InForce(t0.Add(at)); got != want {
			t.Errorf("%s after: %v", at, got)
		}
	}
}

func TestSignRefusesIncompleteClaims(t *testing.T) {
	k := newKey(t)
	for name, spoil := range map[string]func(*Claims){
		"no presenter":   func(c *Claims) { c.Presenter = "" },
		"no fence":       func(c *Claims) { c.Fence = 0 },
		"no generation":  func(c *Claims) { c.Generation = 0 },
		"no turn":        func(c *Claims) { c.Turn = "" },
		"too long":       func(c *Claims) { c.ExpiresAt = c.IssuedAt.Add(MaxTTL + time.Second) },
		"no life":        func(c *Claims) { c.ExpiresAt = c.IssuedAt },
		"unbound action": func(c *Claims) { c.ArgsDigest = "" },
	} {
		c := claims()
		spoil(&c)
		if _, err := k.Sign(c); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
	if _, err := k.Sign(claims()); err != nil {
		t.Errorf("the positive twin: %v", err)
	}
}

func TestSignerRotates(t *testing.T) {
	root := newKey(t)
	var s Signer
	if _, err := s.Sign(claims()); !errors.Is(err, &protocol.Error{Code: protocol.CodeUnavailable}) {
		t.Fatalf("signed without a key: %v", err)
	}
	if err := s.Use(newKey(t)); err == nil {
		t.Fatal("a key without a statement was taken")
	}
	add := func(from time.Time) *Key {
		k := newKey(t)
		st, err := Certify(root.Private, "srv", k.Public(), from, from.Add(KeyTTL))
		if err != nil {
			t.Fatal(err)
		}
		k.Statement, k.NotAfter = st, from.Add(KeyTTL)
		if err := s.Use(k); err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := add(t0)
	if s.Renew(t0.Add(30 * time.Minute)) {
		t.Error("renews before two thirds")
	}
	if !s.Renew(t0.Add(41 * time.Minute)) {
		t.Error("does not renew after two thirds")
	}
	tok, _ := s.Sign(claims())
	second := add(t0.Add(41 * time.Minute))
	if got := s.Statements(t0.Add(50 * time.Minute)); len(got) != 2 {
		t.Errorf("%d statements while both keys live", len(got))
	}
	if _, err := Verify(tok, only(first), here); err != nil {
		t.Errorf("a capability of the earlier key: %v", err)
	}
	if got := s.Statements(t0.Add(61 * time.Minute)); len(got) != 1 || got[0] != second.Statement {
		t.Errorf("%d statements after the first key's end", len(got))
	}
	late := claims()
	late.IssuedAt, late.ExpiresAt = t0.Add(101*time.Minute), t0.Add(102*time.Minute)
	if _, err := s.Sign(late); err == nil {
		t.Error("signed past the end of the key")
	}
}

func TestKeyPrintsNoSecret(t *testing.T) {
	k := newKey(t)
	for _, format := range []string{"%v", "%s", "%+v", "%#v"} {
		if out := fmt.Sprintf(format, k); !strings.Contains(out, "REDACTED") || strings.Contains(out, fmt.Sprint([]byte(k.Private)[:4])) {
			t.Errorf("%s prints %s", format, out)
		}
	}
}

func FuzzVerify(f *testing.F) {
	k, err := NewKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	tok, _ := k.Sign(claims())
	f.Add(tok)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := Verify(s, only(k), here); err == nil && c.ID != "cap_01jdv3k8x0q6v9w2m4t7y5z1ab" {
			t.Errorf("accepted claims that were never signed: %+v", c)
		}
	})
}

package api

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func TestTokenFormAndSecrecy(t *testing.T) {
	tok := NewToken()
	text := tok.Reveal()
	if len(text) != 4+52 || !strings.HasPrefix(text, "bvt_") || text != strings.ToLower(text) {
		t.Errorf("form of a token: %d characters", len(text))
	}
	back, err := ParseToken(text)
	if err != nil || back != tok || !bytes.Equal(back.Hash(), tok.Hash()) {
		t.Errorf("not the same token: %v", err)
	}
	if other := NewToken(); other == tok || bytes.Equal(other.Hash(), tok.Hash()) {
		t.Error("two tokens are one")
	}
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q"} {
		if shown := fmt.Sprintf(verb, tok); strings.Contains(shown, text[4:]) || !strings.Contains(shown, "REDACTED") {
			t.Errorf("%s shows %s", verb, shown)
		}
	}
	for _, bad := range []string{"", "bvt_", text[:55], text + "a", "xyz_" + text[4:], strings.ToUpper(text), "bvt_" + strings.Repeat("1", 52)} {
		if _, err := ParseToken(bad); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPrincipalNames(t *testing.T) {
	for _, c := range []struct {
		n    NewPrincipal
		fine bool
	}{
		{NewPrincipal{Tenant: "local", Name: "alice"}, true},
		{NewPrincipal{Tenant: "local", Name: "a.b_c@d-e", Kind: "service"}, true},
		{NewPrincipal{Tenant: "local", Name: strings.Repeat("x", 64)}, false},
		{NewPrincipal{Tenant: "local", Name: "-x"}, false},
		{NewPrincipal{Tenant: "local", Name: "Alice"}, false},
		{NewPrincipal{Tenant: "a--", Name: "alice", Kind: "god"}, false},
		{NewPrincipal{Tenant: "local_", Name: "alice"}, false},
		{NewPrincipal{Name: "alice"}, false},
	} {
		if err := c.n.check(); (err == nil) != c.fine {
			t.Errorf("%+v: %v", c.n, err)
		}
	}
}

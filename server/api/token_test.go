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

package cli

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// A secret of several lines is refused as a whole; one line is kept without its end.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"secret-value\n": "secret-value", "  secret-value\r\n\n": "secret-value"} {
		if got, err := oneLine(strings.NewReader(in)); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "\n", "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"} {
		if got, err := oneLine(strings.NewReader(in)); protocol.CodeOf(err) != protocol.CodeInvalidArgument || got != "" {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

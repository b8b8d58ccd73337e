package client

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"bivouac/server/broker/secret"
)

// What the server says reaches a person as text that is seen: no line of its own, no
// order to a terminal. Plain words stay as they are.
func TestWordsAreLegible(t *testing.T) {
	for said, want := range map[string]string{
		"permission denied":                      "permission denied",
		"two\nlines\tof it":                      "two lines of it",
		"red \x1b[31m and \u202eturned\u200b":    `red \u001b[31m and \u202eturned\u200b`,
		"a bell \a in the path b\u00fcro/\u2028": `a bell \u0007 in the path büro/`,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]any{"errors": []string{said}})
		})
		_, err := c.Read(t.Context(), secret.Value{}, "a/b")
		if KindOf(err) != Refused || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%q is said as %q (%s)", said, err, KindOf(err))
		}
	}
}

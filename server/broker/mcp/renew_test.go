package mcp

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/secret"
)

// A server that refuses a token before anything was called gets another one, once; one
// that refuses the call itself does not. INV-5, INV-17.
func TestRefusedTokenIsRenewedBeforeACall(t *testing.T) {
	const second = "access-token-two-0123"
	other, err := secret.New(second)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		good    string // token that the server takes
		refuses string // method that it refuses whatever the token
		renewed int
		want    protocol.Code
		text    string
	}{
		"taken":                 {good: token, text: "you are Bearer [redacted]"},
		"renewed":               {good: second, renewed: 1, text: "you are Bearer [redacted]"},
		"refused again":         {good: "none", renewed: 1, want: protocol.CodePermissionDenied},
		"refused with the call": {good: token, refuses: methodCall, text: "HTTP 401"},
	} {
		h, renewed, calls := realHandler(nil), 0, 0
		e := endpoint(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(headerMethod) == methodCall {
				calls++
			}
			if r.Header.Get("Authorization") != "Bearer "+tc.good || tc.refuses != "" && r.Header.Get(headerMethod) == tc.refuses {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		}), nil)
		a := access(t)
		a.RenewFunc = func(context.Context) (secret.Value, []secret.Value, error) {
			renewed++
			return other, nil, nil
		}
		answer, err := invoke(t.Context(), e, a, search("echo"))
		if renewed != tc.renewed || protocol.CodeOf(err) != tc.want && tc.want != "" || (err == nil) != (tc.want == "") {
			t.Errorf("%s: renewed %d times, %v", name, renewed, err)
			continue
		}
		if err != nil && (!errors.As(err, new(*gateway.NotSent)) || calls != 0) {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
		if err == nil && (!strings.Contains(string(answer.Body), tc.text) || calls != 1) {
			t.Errorf("%s: %s after %d calls", name, answer.Body, calls)
		}
	}
}

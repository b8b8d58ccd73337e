//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// tokens is an authorization server that gives a new refresh token each time and shows
// the old one wherever its answers have room for words.
type tokens struct {
	*httptest.Server
	hoard *hoard

	mu       sync.Mutex // guards below
	good     string     // the refresh token that counts
	asked    int
	received []byte
}

func newTokens(t *testing.T, h *hoard, refresh string) *tokens {
	s := &tokens{hoard: h, good: refresh}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dump, err := httputil.DumpRequest(r, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	refresh := r.PostFormValue("refresh_token")
	s.received = fmt.Appendf(s.received, "%s %v %s\n", dump, err, refresh)
	shown := url.QueryEscape(refresh)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("WWW-Authenticate", `Bearer error_description="`+shown+`"`)
	switch {
	case refresh != s.good:
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": "no such token: " + refresh, "error_uri": "http://x/" + shown})
	case s.asked%3 == 1: // it is away for now, and says so with the token in every field
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "temporarily_unavailable", "error_description": refresh, refresh: refresh})
	default:
		s.good = s.hoard.stored("refresh-token")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": s.hoard.stored("access-token"), "token_type": "Bearer", "expires_in": 3600,
			"refresh_token": s.good, "scope": refresh, "id_token": refresh})
	}
}

package client

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/server/broker/secret"
)

const token = "5a1f6f0e-0000-4000-8000-0000000canary"

// asking a server that answers as h does, with a token.
func asking(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Config{Address: s.URL, Token: func() (secret.Value, error) { return Token(token) }, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answer of a leader, with a status and a body.
func answer(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", "7")
		w.Header().Set("X-Consul-Knownleader", "true")
		w.Header().Set("X-Consul-Lastcontact", "0")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// What comes is an answer, or a fault of its kind; no error holds the token.
func TestKinds(t *testing.T) {
	const good = `{"weather": []}`
	for name, tc := range map[string]struct {
		h    http.HandlerFunc
		want Kind
	}{
		"an answer":       {answer(200, good), ""},
		"no leader":       {answer(500, "No cluster leader"), Leaderless},
		"leader unknown":  {answer(200, good, "X-Consul-Knownleader", "false"), Leaderless},
		"not the leader":  {answer(200, good, "X-Consul-Lastcontact", "12"), Leaderless},
		"thinned out":     {answer(200, good, "X-Consul-Results-Filtered-By-ACLs", "true"), Refused},
		"no right":        {answer(403, `Permission denied: token with AccessorID 'a' lacks permission 'intention:read' on "weather"`), Refused},
		"wrapped in rpc":  {answer(500, "rpc error making call: Permission denied"), Refused},
		"no such token":   {answer(403, "ACL not found"), NoToken},
		"too many":        {answer(429, "Your IP is issuing too many concurrent connections"), Limited},
		"intentions off":  {answer(500, "Connect must be enabled in order to use this endpoint"), Disabled},
		"wrong":           {answer(400, "name is invalid"), Invalid},
		"broken":          {answer(500, "boom"), Away},
		"somebody else":   {answer(200, "<html>welcome</html>"), Strange},
		"sent elsewhere":  {answer(302, "", "Location", "https://elsewhere.example/"), Away},
		"without an end":  {answer(200, `{"weather": ["`+strings.Repeat("x", MaxAnswer)+`"]}`), Away},
		"without a label": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(good)) }, Strange},
	} {
		a, err := asking(t, tc.h).Match(t.Context(), "weather", 0, 0)
		if KindOf(err) != tc.want || (err == nil) != (tc.want == "") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the token is in %v", name, err)
		}
		if name == "an answer" && (a.Index != 7 || string(a.Body) != good || a.Date.IsZero()) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// The question is a consistent one about one name, with the token of its file alone,
// whatever the environment says; a held one has an index and a time.
func TestQuestion(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "canary-of-the-environment")
	t.Setenv("CONSUL_NAMESPACE", "elsewhere")
	t.Setenv("CONSUL_HTTP_AUTH", "user:canary")
	seen := make(chan *http.Request, 2)
	c := asking(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		answer(200, `{"weather": null}`)(w, r)
	})
	for index, want := range map[uint64]string{0: "by=destination&consistent=&name=weather", 9: "by=destination&consistent=&index=9&name=weather&wait=2000ms"} {
		if _, err := c.Match(t.Context(), "weather", index, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		r := <-seen
		if r.URL.RawQuery != want || r.Header.Get("X-Consul-Token") != token || r.Header.Get("Authorization") != "" {
			t.Errorf("asked %s with %v", r.URL.RawQuery, r.Header)
		}
	}
}

// A token's file is read for every question, belongs to one user, and holds one word.
func TestTokenFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	read := TokenFile(name)
	put := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := read(); err == nil {
		t.Error("a file that is not there has a token")
	}
	put(token+"\n", 0o600)
	if v, err := read(); err != nil || v.Reveal() != token {
		t.Errorf("%v", err)
	}
	for what, text := range map[string]string{"empty": "\n", "two words": token + " " + token, "two lines": token + "\n" + token} {
		put(text, 0o600)
		if _, err := read(); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", what, err)
		}
	}
	put(token, 0o644)
	if _, err := read(); err == nil {
		t.Error("a token that everybody may read is taken")
	}
}

package client

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

const token = "hvs.test-0123456789"

func as(t *testing.T) secret.Value {
	t.Helper()
	v, err := secret.New(token)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Config{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// framed is an answer of the server's with these data.
func framed(data string) string {
	return `{"request_id":"7f","lease_id":"","renewable":false,"lease_duration":0,"data":` + data + `,"wrap_info":null,"warnings":null,"auth":null}`
}

// The one table from an answer to what it means, with the words of both servers.
func TestKinds(t *testing.T) {
	for name, x := range map[string]struct {
		status int
		body   string
		kind   Kind
		code   protocol.Code
	}{
		"nothing there":      {404, `{"errors":[]}`, Absent, protocol.CodeNotFound},
		"deleted version":    {404, framed(`{"data":null,"metadata":{"version":2}}`), Absent, protocol.CodeNotFound},
		"no namespace":       {404, `{"errors":["namespace not found"]}`, NoNamespace, protocol.CodeFailedPrecondition},
		"person disabled":    {403, `{"errors":["entity from given entity alias is disabled"]}`, Disabled, protocol.CodePermissionDenied},
		"no mount":           {404, `{"errors":["no handler for route \"x/data/y\". route entry not found."]}`, Unmounted, protocol.CodeFailedPrecondition},
		"no right":           {403, `{"errors":["1 error occurred:\n\t* permission denied\n\n"]}`, Refused, protocol.CodeFailedPrecondition},
		"bad token":          {403, `{"errors":["2 errors occurred:\n\t* permission denied\n\t* invalid token\n\n"]}`, Refused, protocol.CodeFailedPrecondition},
		"accessor, Vault":    {403, `{"errors":["1 error occurred:\n\t* invalid accessor\n\n"]}`, NoAccessor, protocol.CodeNotFound},
		"accessor, older":    {400, `{"errors":["invalid accessor"]}`, NoAccessor, protocol.CodeNotFound},
		"refused login":      {500, `{"errors":["invalid secret id"]}`, Refused, protocol.CodeFailedPrecondition},
		"check-and-set":      {400, `{"errors":["check-and-set parameter did not match the current version"]}`, Changed, protocol.CodeConflict},
		"wrong request":      {400, `{"errors":["child policies must be subset of parent"]}`, Invalid, protocol.CodeFailedPrecondition},
		"rate limit":         {429, `{"errors":["request path \"auth/token/create\": rate limit quota exceeded"]}`, Limited, protocol.CodeRateLimited},
		"sealed":             {503, `{"errors":["Vault is sealed"]}`, Sealed, protocol.CodeUnavailable},
		"standby, no active": {500, `{"errors":["local node not active but active cluster node not found"]}`, Away, protocol.CodeUnavailable},
		"standby, lagging":   {412, `{"errors":["required index state not present"]}`, Away, protocol.CodeUnavailable},
		"audit fails":        {500, `{"errors":["1 error occurred:\n\t* no audit backend succeeded in logging the request\n\n"]}`, Away, protocol.CodeUnavailable},
		"a page":             {502, `<html>Bad Gateway</html>`, Away, protocol.CodeUnavailable},
		"foreign 404":        {404, `{"message":"no Route matched with those values","request_id":"3a"}`, Away, protocol.CodeUnavailable},
		"foreign 404, page":  {404, `<html>default backend - 404</html>`, Away, protocol.CodeUnavailable},
		"foreign 404, empty": {404, ``, Away, protocol.CodeUnavailable},
		"foreign 404, data":  {404, `{"data":{"data":null,"metadata":{"version":2}}}`, Away, protocol.CodeUnavailable},
		"foreign 404, null":  {404, `{"errors":null}`, Away, protocol.CodeUnavailable},
		"foreign 404, list":  {404, `{"errors":[{"status":"404"}]}`, Away, protocol.CodeUnavailable},
		"404 with words":     {404, `{"errors":["not found"]}`, Invalid, protocol.CodeFailedPrecondition},
		"foreign 403":        {403, `{"message":"forbidden"}`, Away, protocol.CodeUnavailable},
		"foreign 403, page":  {403, `<html>invalid accessor</html>`, Away, protocol.CodeUnavailable},
		"foreign 400":        {400, `{"error":"invalid accessor"}`, Away, protocol.CodeUnavailable},
		"foreign 401":        {401, `{}`, Away, protocol.CodeUnavailable},
		"foreign 429":        {429, `{"message":"API rate limit exceeded"}`, Away, protocol.CodeUnavailable},
		"foreign 503":        {503, `sealed`, Away, protocol.CodeUnavailable},
		"foreign 200":        {200, `{}`, Away, protocol.CodeUnavailable},
		"foreign 200, page":  {200, `<html>Welcome</html>`, Away, protocol.CodeUnavailable},
		"foreign 200, empty": {200, ``, Away, protocol.CodeUnavailable},
		"foreign 200, words": {200, `{"message":"ok","request_id":"3a","data":{"ttl":1}}`, Away, protocol.CodeUnavailable},
		"foreign 202":        {202, framed(`{}`), Away, protocol.CodeUnavailable},
		"foreign 204":        {204, ``, Away, protocol.CodeUnavailable},
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(x.status)
			fmt.Fprint(w, x.body)
		})
		_, err := c.Read(t.Context(), as(t), "x/data/y")
		if KindOf(err) != x.kind || protocol.CodeOf(err) != x.code {
			t.Errorf("%s: %v is %q %q, want %q %q", name, err, KindOf(err), protocol.CodeOf(err), x.kind, x.code)
		}
		if strings.Contains(fmt.Sprint(err), token) || strings.Contains(fmt.Sprint(err), "\n") || strings.Contains(fmt.Sprint(err), "<html>") {
			t.Errorf("%s: %q", name, err)
		}
		var e *protocol.Error
		if errors.As(err, &e) && x.kind.Unknown() != (e.RetryAfter > 0) {
			t.Errorf("%s: again after %s", name, e.RetryAfter)
		}
	}
}

func TestRequests(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch said := r.Method + " " + r.URL.RequestURI() + " " + string(body); said {
		case "GET /v1/a/b ":
			fmt.Fprint(w, framed(`{"number":1234567890123,"text":"x","list":["a","b"]}`))
		case "GET /v1/a/?list=true ", "GET /v1/a?list=true ":
			fmt.Fprint(w, framed(`{"keys":["b","c/"]}`))
		case `PUT /v1/auth/x/login {"role":"r"}`:
			if r.Header.Get("X-Vault-Token") != "" {
				t.Error("a login carries a token")
			}
			fmt.Fprint(w, `{"request_id":"7f","lease_id":"","lease_duration":0,"data":null,"auth":{"client_token":"hvs.made-0123456789","accessor":"acc","policies":["p"],"lease_duration":3600,"renewable":true,"entity_id":"e"}}`)
			return
		case "DELETE /v1/a/b ":
			w.WriteHeader(http.StatusNoContent)
		default:
			t.Error(said)
			w.WriteHeader(http.StatusNotFound)
		}
		if r.Header.Get("X-Vault-Token") != token || r.Header.Get("X-Vault-Request") != "true" {
			t.Error("without its headers", r.Header)
		}
	})
	a, err := c.Read(t.Context(), as(t), "a/b")
	if err != nil || Number(a.Data["number"]) != 1234567890123 || Text(a.Data["text"]) != "x" || len(Texts(a.Data["list"])) != 2 {
		t.Error(a, err)
	}
	if keys, err := c.List(t.Context(), as(t), "a/"); err != nil || fmt.Sprint(keys) != "[b c/]" {
		t.Error(keys, err)
	}
	l, err := c.Write(t.Context(), secret.Value{}, "auth/x/login", map[string]any{"role": "r"})
	if err != nil || l.Login.Token.Reveal() != "hvs.made-0123456789" || l.Login.TTL != time.Hour || l.Login.Entity != "e" {
		t.Error(l, err)
	}
	if err := c.Delete(t.Context(), as(t), "a/b"); err != nil {
		t.Error(err)
	}
}

// Nothing that a server does keeps a caller longer than its time, and a caller that
// goes is told so.
func TestBounds(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "large") {
			_, _ = w.Write([]byte(`{"request_id":"7f","data":{"x":"`))
			for range MaxAnswer / 1024 {
				_, _ = w.Write([]byte(strings.Repeat("x", 1025)))
			}
			return
		}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	c.timeout = 20 * time.Millisecond
	if _, err := c.Read(t.Context(), as(t), "x"); KindOf(err) != Away {
		t.Errorf("hanging: %v", err)
	}
	c.timeout = time.Minute
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	if _, err := c.Read(gone, as(t), "x"); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a caller that went: %v", err)
	}
	if _, err := c.Read(t.Context(), as(t), "large"); KindOf(err) != Away {
		t.Errorf("a large answer: %.100v", err)
	}
}

// What stands in the environment for other tools changes nothing here.
func TestEnvironment(t *testing.T) {
	for k, v := range map[string]string{"VAULT_TOKEN": "hvs.environment", "VAULT_NAMESPACE": "other", "VAULT_ADDR": "http://127.0.0.1:1", "VAULT_HEADERS": `{"X-A":"b"}`} {
		t.Setenv(k, v)
	}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Vault-Token") != "" || r.Header.Get("X-Vault-Namespace") != "" || r.Header.Get("X-A") != "" {
			t.Error(r.Header)
		}
		fmt.Fprint(w, framed(`{}`))
	})
	if _, err := c.Read(t.Context(), secret.Value{}, "sys/mounts"); err != nil {
		t.Error(err)
	}
}

// A token goes to the server that the authority vouches for, and over nothing else.
func TestTrust(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/away" { // a redirect to plain HTTP
			http.Redirect(w, r, "http://127.0.0.1:1/v1/x", http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(w, framed(`{}`))
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := New(Config{Address: s.URL, CAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(known.Close)
	if _, err := known.Read(t.Context(), as(t), "x"); err != nil {
		t.Error(err)
	}
	if _, err := known.Read(t.Context(), as(t), "away"); KindOf(err) != Away {
		t.Errorf("a redirect to plain HTTP: %v", err)
	}
	stranger, err := New(Config{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stranger.Close)
	if _, err := stranger.Read(t.Context(), as(t), "x"); KindOf(err) != Away {
		t.Errorf("an unknown authority: %v", err)
	}
	for _, address := range []string{"http://vault.example:8200", "vault.example", "https://u:p@vault.example", "ftp://127.0.0.1", "https://vault.example/v1?x", ""} {
		if _, err := New(Config{Address: address}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%q: %v", address, err)
		}
	}
}

package broker_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// sandboxed is the capability of an attempt whose sandbox may read from destinations.
func (w *world) sandboxed(change func(*capability.Claims), destinations ...string) string {
	w.t.Helper()
	return w.sign(w.claims(func(c *capability.Claims) {
		c.Attempt, c.Presenter, c.Egress = newID[protocol.AttemptKind](), thumbprint(w.runnerCert), destinations
		if change != nil {
			change(c)
		}
	}))
}

// ask is one package request, as a relay makes it.
type ask struct {
	token, destination, method, target string
	header                             http.Header
	body                               string
}

// packages asks as the holder of a certificate; each call has a connection of its
// own. The answer's body is read by the caller.
func (w *world) packages(ctx context.Context, cert *tls.Certificate, a ask) *http.Response {
	w.t.Helper()
	c, err := link.NewClient(link.Config{
		Address: brokerAddr, Trust: link.Trust{Role: identity.RoleBroker, Root: w.keys.Root()}, Network: w.net.Network("10.0.0.3"),
		Certificate: func() (*tls.Certificate, error) { return cert, nil },
	})
	w.must(err)
	w.t.Cleanup(func() { c.Close() })
	var body io.Reader
	if a.body != "" {
		body = strings.NewReader(a.body)
	}
	req, err := http.NewRequestWithContext(ctx, a.method, c.URL()+protocol.EgressPath, body)
	w.must(err)
	for name, values := range a.header {
		req.Header[name] = values
	}
	req.Header.Set(protocol.EgressCapability, a.token)
	req.Header.Set(protocol.EgressDestination, a.destination)
	req.Header.Set(protocol.EgressTarget, a.target)
	res, err := c.Do(req)
	w.must(err)
	return res
}

// answer reads a response to its end.
func answer(res *http.Response) (code protocol.Code, text string, err error) {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return protocol.Code(res.Header.Get(protocol.EgressCode)), string(b), err
}

// INV-10, INV-12: who may ask, for what, by which verb. Each refusal says why, and
// nothing of it reaches the registry; the twin with everything right passes.
func TestEgressRefusals(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		good := ask{destination: "modules", method: "GET", target: "/example.test/m/@v/list"}
		all := []string{"modules", "forge", "hidden", "elsewhere", "weather", "nowhere", "unlisted"}
		for name, c := range map[string]struct {
			change func(*capability.Claims)
			claim  []string
			cert   *tls.Certificate
			ask    func(*ask)
			code   protocol.Code
			says   string
		}{
			"not in the capability": {claim: []string{"forge"}, code: protocol.CodePermissionDenied, says: "name it in egress of the agent assistant"},
			"no egress at all":      {claim: []string{}, code: protocol.CodePermissionDenied, says: "no way to"},
			"no attempt":            {change: func(c *capability.Claims) { c.Attempt = "" }, claim: all, code: protocol.CodePermissionDenied, says: "no way to"},
			"another runner's":      {claim: all, cert: w.certify(identity.RoleRunner, "", w.tenant), code: protocol.CodePermissionDenied, says: "another key"},
			"a server":              {claim: all, cert: w.serverCert, code: protocol.CodePermissionDenied, says: "runners alone"},
			"expired": {change: func(c *capability.Claims) {
				c.IssuedAt = c.IssuedAt.Add(-time.Hour)
				c.ExpiresAt = c.IssuedAt.Add(time.Minute)
			}, claim: all, code: protocol.CodePermissionDenied, says: "expired"},
			"no capability":              {ask: func(a *ask) { a.token = "none" }, code: protocol.CodePermissionDenied, says: "refused"},
			"for tools only":             {claim: all, ask: func(a *ask) { a.destination = "weather" }, code: protocol.CodePermissionDenied, says: "egress block in broker.hcl"},
			"not in broker.hcl":          {claim: all, ask: func(a *ask) { a.destination = "nowhere" }, code: protocol.CodeNotFound, says: "add it to broker.hcl"},
			"no path":                    {claim: all, ask: func(a *ask) { a.destination = "unlisted" }, code: protocol.CodePolicyDenied, says: "{ Name = \"agent-assistant\", Action = \"allow\" }"},
			"data of another boundary":   {claim: all, ask: func(a *ask) { a.destination = "elsewhere" }, code: protocol.CodePolicyDenied, says: "boundary"},
			"a private address":          {claim: all, ask: func(a *ask) { a.destination = "hidden" }, code: protocol.CodePolicyDenied, says: "private address"},
			"publishing":                 {claim: all, ask: func(a *ask) { a.method = "PUT" }, code: protocol.CodePolicyDenied, says: "GET and HEAD"},
			"a post":                     {claim: all, ask: func(a *ask) { a.method, a.body = "POST", "x" }, code: protocol.CodePolicyDenied, says: "GET and HEAD"},
			"a push":                     {claim: all, ask: func(a *ask) { a.destination, a.target = "forge", "/r/info/refs?service=git-receive-pack" }, code: protocol.CodePolicyDenied, says: "no push"},
			"a push's body":              {claim: all, ask: func(a *ask) { a.destination, a.method, a.target = "forge", "POST", "/r/git-receive-pack" }, code: protocol.CodePolicyDenied, says: "no push"},
			"a file of a forge":          {claim: all, ask: func(a *ask) { a.destination, a.target = "forge", "/r/HEAD" }, code: protocol.CodePolicyDenied, says: "clone and fetch"},
			"the way up":                 {claim: all, ask: func(a *ask) { a.target = "/../secret" }, code: protocol.CodeInvalidArgument, says: "dots"},
			"the way up, escaped":        {claim: all, ask: func(a *ask) { a.target = "/x%2f..%2f..%2fsecret" }, code: protocol.CodeInvalidArgument, says: "dots"},
			"another host":               {claim: all, ask: func(a *ask) { a.target = "//provider.example/v1" }, code: protocol.CodeInvalidArgument, says: "path"},
			"another host, absolute":     {claim: all, ask: func(a *ask) { a.target = "http://provider.example/v1" }, code: protocol.CodeInvalidArgument, says: "path"},
			"metadata behind a userinfo": {claim: all, ask: func(a *ask) { a.target = "@169.254.169.254/latest" }, code: protocol.CodeInvalidArgument, says: "path"},
		} {
			a, cert := good, w.runnerCert
			a.token = w.sandboxed(c.change, c.claim...)
			if c.cert != nil {
				cert = c.cert
			}
			if c.ask != nil {
				c.ask(&a)
			}
			code, text, err := answer(w.packages(t.Context(), cert, a))
			if err != nil || code != c.code || !strings.Contains(text, c.says) {
				t.Errorf("%s: %s %q %v, want %s and %q", name, code, text, err, c.code, c.says)
			}
		}
		if got := w.tools.requests(); len(got) != 0 {
			t.Errorf("what was refused reached the registry: %v", got)
		}
		good.token = w.sandboxed(nil, "modules")
		if code, text, err := answer(w.packages(t.Context(), w.runnerCert, good)); code != "" || err != nil {
			t.Errorf("the positive twin: %s %q %v", code, text, err)
		}
		if got := w.tools.requests(); len(got) != 1 || got[0] != "GET /mod/example.test/m/@v/list " {
			t.Errorf("the registry got %v", got)
		}
	})
}

// DNS answers after policy: what is refused has no name looked up.
func TestEgressNamesAreResolvedAfterPolicy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		get := func(destination, target string, claim ...string) protocol.Code {
			code, _, _ := answer(w.packages(t.Context(), w.runnerCert, ask{w.sandboxed(nil, claim...), destination, "GET", target, nil, ""}))
			return code
		}
		if get("modules", "/x") == "" || get("unlisted", "/x", "unlisted") == "" || get("forge", "/r/HEAD", "forge") == "" || w.resolved.Load() != 0 {
			t.Errorf("%d names were looked up for what was refused", w.resolved.Load())
		}
		if code := get("modules", "/x", "modules"); code != "" || w.resolved.Load() != 1 {
			t.Errorf("the positive twin: %s, %d names", code, w.resolved.Load())
		}
	})
}

// A path entry may name methods and paths: it holds for sandboxed code as well.
func TestEgressByPathAndMethod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		in, err := consul.Parse([]byte(`
Kind = "service-intentions"
Name = "modules"
Sources = [{ Name = "agent-assistant", Permissions = [{ Action = "allow", HTTP = { PathPrefix = "/mod/example.test/", Methods = ["GET"] } }] }]
`), "modules.hcl")
		w.must(err)
		w.paths.Set(in)
		for target, want := range map[string]protocol.Code{"/example.test/m/@v/list": "", "/other.test/m/@v/list": protocol.CodePolicyDenied} {
			code, text, err := answer(w.packages(t.Context(), w.runnerCert, ask{w.sandboxed(nil, "modules"), "modules", "GET", target, nil, ""}))
			if code != want || err != nil {
				t.Errorf("%s: %s %q %v", target, code, text, err)
			}
		}
	})
}

// INV-17: the registry gets the operator's key and nothing of the sandbox's own;
// the sandbox gets the answer without it, whatever the registry echoes.
func TestEgressCredential(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var got http.Header
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			got = r.Header.Clone()
			out.Header().Set("Etag", `"`+toolKey+`"`)
			out.Header().Set("Set-Cookie", "who=me")
			fmt.Fprintf(out, "you sent %s, and here it is in two halves: %s", r.Header.Get("Authorization"), toolKey[:9])
			out.(http.Flusher).Flush()
			fmt.Fprint(out, toolKey[9:])
			written := "" // with escapes, in two halves too
			for _, c := range []byte(toolKey) {
				written += fmt.Sprintf("&#%d;", c)
			}
			fmt.Fprint(out, " or "+written[:33])
			out.(http.Flusher).Flush()
			fmt.Fprint(out, written[33:]+" the end")
		})
		res := w.packages(t.Context(), w.runnerCert, ask{w.sandboxed(nil, "forge"), "forge", "POST", "/r/git-upload-pack",
			http.Header{"Authorization": {"Bearer mine"}, "Cookie": {"a=b"}, "Accept-Encoding": {"gzip"}, "Content-Type": {"application/x-git-upload-pack-request"}, "Git-Protocol": {"version=2"}}, "0000"})
		code, text, err := answer(res)
		if code != "" || err != nil || strings.Contains(text, toolKey) || strings.Count(text, "[redacted]") != 3 || !strings.HasPrefix(text, "you sent Bearer ") || !strings.HasSuffix(text, "[redacted] or [redacted] the end") {
			t.Errorf("%s %q %v", code, text, err)
		}
		if res.Header.Get("Etag") != `"[redacted]"` || res.Header.Get("Set-Cookie") != "" {
			t.Errorf("headers that came back: %v", res.Header)
		}
		if got.Get("Authorization") != "Bearer "+toolKey || got.Get("Cookie") != "" || got.Get("Accept-Encoding") != "identity" || got.Get("Git-Protocol") != "version=2" {
			t.Errorf("headers that went out: %v", got)
		}
		for name := range got {
			if strings.HasPrefix(name, "Bivouac-") {
				t.Errorf("the registry was told %s", name)
			}
		}
	})
}

// A redirect stays at the destination, or is refused in words; it is not followed.
func TestEgressRedirects(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		to := ""
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) { http.Redirect(out, r, to, http.StatusFound) })
		for _, c := range []struct{ to, at, says string }{
			{"/mod/there?x=1", "/there?x=1", ""},
			{"http://tools.example/mod/there", "/there", ""},
			{"http://tools.example/elsewhere", "", "does not reach"},
			{"http://169.254.169.254/latest", "", "169.254.169.254"},
			{"https://tools.example/mod/there", "", "does not reach"},
		} {
			to = c.to
			res := w.packages(t.Context(), w.runnerCert, ask{w.sandboxed(nil, "modules"), "modules", "GET", "/x", nil, ""})
			code, text, err := answer(res)
			if err != nil || res.Header.Get("Location") != c.at || (code != "") != (c.says != "") || !strings.Contains(text, c.says) {
				t.Errorf("%s: %s %q %q %v", c.to, code, text, res.Header.Get("Location"), err)
			}
		}
	})
}

// INV-13: what is open ends within a second of a revocation or of a path that goes,
// also while nobody reads; and nothing new begins.
func TestEgressFlowsClose(t *testing.T) {
	for name, take := range map[string]func(*world, string){
		"attempt": func(w *world, att string) { w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_ATTEMPT, att, 1<<62) },
		"path":    func(w *world, _ string) { w.paths.Set(consultest.Allow("modules", "agent-other")) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				gone := make(chan struct{})
				w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
					fmt.Fprint(out, "first")
					out.(http.Flusher).Flush()
					<-r.Context().Done()
					close(gone)
				})
				var att protocol.AttemptID
				a := ask{w.sandboxed(func(c *capability.Claims) { att = c.Attempt }, "modules"), "modules", "GET", "/slow", nil, ""}
				res := w.packages(t.Context(), w.runnerCert, a)
				defer res.Body.Close()
				first := make([]byte, 5)
				if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "first" {
					t.Fatal(string(first), err)
				}
				start := time.Now()
				take(w, att.String())
				if rest, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("it ended as if it were whole: %q", rest)
				}
				<-gone
				if took := time.Since(start); took > time.Second {
					t.Errorf("it went on for %v", took)
				}
				if code, text, _ := answer(w.packages(t.Context(), w.runnerCert, a)); code == "" {
					t.Errorf("another began: %q", text)
				}
			})
		})
	}
}

// A turn moves so much and has so many open; others are not touched by it.
func TestEgressBounds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/mod/wait" {
				fmt.Fprint(out, "x")
				out.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			piece := strings.Repeat("x", 1<<10)
			for range 700 {
				fmt.Fprint(out, piece)
			}
		})
		token, other := w.sandboxed(nil, "modules"), w.sandboxed(nil, "modules")
		get := func(token, target string) *http.Response {
			return w.packages(t.Context(), w.runnerCert, ask{token, "modules", "GET", target, nil, ""})
		}
		if code, text, err := answer(get(token, "/big")); code != "" || err != nil || len(text) != 700<<10 {
			t.Errorf("within its bound: %s %d %v", code, len(text), err)
		}
		if _, text, err := answer(get(token, "/big")); err == nil {
			t.Errorf("%d bytes beyond the bound look like a whole answer", len(text))
		}
		if code, _, err := answer(get(other, "/big")); code != "" || err != nil {
			t.Errorf("another turn: %s %v", code, err)
		}
		for range 2 {
			res := get(other, "/wait")
			defer res.Body.Close()
		}
		if code, text, _ := answer(get(other, "/list")); code != protocol.CodeRateLimited || !strings.Contains(text, "2 requests open") {
			t.Errorf("a third: %s %q", code, text)
		}
	})
}

package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

const token = `tok/+secret"0123456789`

func credential(t *testing.T) secret.Value {
	t.Helper()
	v, err := secret.New(token)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// destination is served by h below /api/v1.
func destination(t *testing.T, h http.HandlerFunc) *Destination {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return destinationAt(t, server.URL+"/api/v1/")
}

func destinationAt(t *testing.T, base string) *Destination {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	client, err := egress.NewClient(egress.Config{Name: "weather", Base: u, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Name: "weather", Base: u, Client: client, Methods: []string{"GET", "POST"}, Bindings: map[string]Binding{
		"weather-key": {Header: "Authorization", Format: "Bearer {value}"},
	}})
	t.Cleanup(d.Close)
	return d
}

func tool(change func(*brokerv1.HttpTool)) *brokerv1.HttpTool {
	t := &brokerv1.HttpTool{Ref: "http:forecast", Destination: "weather", Method: "GET", Path: "/forecast/{city}?days={days}&unit=c", Credential: "weather-key"}
	if change != nil {
		change(t)
	}
	return t
}

func TestRequestIsFilled(t *testing.T) {
	var got *http.Request
	var sent []byte
	d := destination(t, func(w http.ResponseWriter, r *http.Request) {
		got, sent = r, must(io.ReadAll(r.Body))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"ok":true}`)
	})
	post := tool(func(h *brokerv1.HttpTool) {
		h.Method, h.Path, h.Body, h.IdempotencyHeader = "POST", "/city/{city}/note", []string{"text", "level", "absent"}, "Idempotency-Key"
	})
	r, err := d.Prepare(Call{Tool: post, Arguments: []byte(`{"city":"Zürich/Süd ?#&","level":12345678901234567,"text":"<b> & \u2028"}`), IdempotencyKey: "act_1"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Send(t.Context(), Pass{Credential: credential(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got.URL.EscapedPath() != "/api/v1/city/Z%C3%BCrich%2FS%C3%BCd%20%3F%23%26/note" || got.Method != "POST" {
		t.Errorf("%s %s", got.Method, got.URL.EscapedPath())
	}
	if string(sent) != `{"level":12345678901234567,"text":"<b> & \u2028"}` {
		t.Errorf("body %s", sent)
	}
	if got.Header.Get("Authorization") != "Bearer "+token || got.Header.Get("Idempotency-Key") != "act_1" || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("headers are wrong")
	}
	if a.Status != 200 || string(a.Body) != `{"ok":true}` || a.ContentType != "application/json" || a.Truncated || a.Bytes != 11 || a.Digest == "" || !r.Repeatable {
		t.Errorf("%+v", a)
	}

	r, err = d.Prepare(Call{Tool: tool(nil), Arguments: []byte(`{"city":"Bern"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Send(t.Context(), Pass{Credential: credential(t)}); err != nil {
		t.Fatal(err)
	}
	if got.URL.RequestURI() != "/api/v1/forecast/Bern?unit=c" {
		t.Errorf("an absent optional parameter: %s", got.URL.RequestURI())
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// Arguments cannot leave their place. The positive twin is TestRequestIsFilled.
func TestArgumentsStayInTheirPlace(t *testing.T) {
	d := destinationAt(t, "https://api.example/v1")
	for name, tc := range map[string]struct {
		tool *brokerv1.HttpTool
		args string
		want protocol.Code
	}{
		"dot dot":         {tool(nil), `{"city":".."}`, protocol.CodeInvalidArgument},
		"dot":             {tool(nil), `{"city":"."}`, protocol.CodeInvalidArgument},
		"traversal":       {tool(nil), `{"city":"../../admin"}`, protocol.CodeInvalidArgument},
		"backslash":       {tool(nil), `{"city":"..\\admin"}`, protocol.CodeInvalidArgument},
		"empty":           {tool(nil), `{"city":""}`, protocol.CodeInvalidArgument},
		"missing":         {tool(nil), `{}`, protocol.CodeInvalidArgument},
		"null":            {tool(nil), `{"city":null}`, protocol.CodeInvalidArgument},
		"object":          {tool(nil), `{"city":{"a":1}}`, protocol.CodeInvalidArgument},
		"unused":          {tool(nil), `{"city":"x","drop":"table"}`, protocol.CodeInvalidArgument},
		"no object":       {tool(nil), `["city"]`, protocol.CodeInvalidArgument},
		"joined dots":     {tool(func(h *brokerv1.HttpTool) { h.Path = "/a/{x}{y}" }), `{"x":".","y":"."}`, protocol.CodeInvalidArgument},
		"dot in template": {tool(func(h *brokerv1.HttpTool) { h.Path = "/a/../b" }), `{}`, protocol.CodeInvalidArgument},
		"encoded dot":     {tool(func(h *brokerv1.HttpTool) { h.Path = "/a/%2e%2E/b" }), `{}`, protocol.CodeInvalidArgument},
		"encoded slash":   {tool(func(h *brokerv1.HttpTool) { h.Path = "/a%2fb" }), `{}`, protocol.CodeInvalidArgument},
		"no slash":        {tool(func(h *brokerv1.HttpTool) { h.Path = "@evil.example/" }), `{}`, protocol.CodeInvalidArgument},
		"two slashes":     {tool(func(h *brokerv1.HttpTool) { h.Path = "//evil.example/" }), `{}`, protocol.CodeInvalidArgument},
		"backslash path":  {tool(func(h *brokerv1.HttpTool) { h.Path = `/\evil` }), `{}`, protocol.CodeInvalidArgument},
		"fragment":        {tool(func(h *brokerv1.HttpTool) { h.Path = "/a#b" }), `{}`, protocol.CodeInvalidArgument},
		"space":           {tool(func(h *brokerv1.HttpTool) { h.Path = "/a b" }), `{}`, protocol.CodeInvalidArgument},
		"brace":           {tool(func(h *brokerv1.HttpTool) { h.Path = "/a/{b" }), `{}`, protocol.CodeInvalidArgument},
		"query name":      {tool(func(h *brokerv1.HttpTool) { h.Path = "/a?{x}=1" }), `{"x":"y"}`, protocol.CodeInvalidArgument},
		"method":          {tool(func(h *brokerv1.HttpTool) { h.Method = "DELETE" }), `{"city":"x"}`, protocol.CodePolicyDenied},
		"method case":     {tool(func(h *brokerv1.HttpTool) { h.Method = "get" }), `{"city":"x"}`, protocol.CodePolicyDenied},
		"credential":      {tool(func(h *brokerv1.HttpTool) { h.Credential = "other-key" }), `{"city":"x"}`, protocol.CodePolicyDenied},
		"key as header":   {tool(func(h *brokerv1.HttpTool) { h.IdempotencyHeader = "authorization" }), `{"city":"x"}`, protocol.CodeInvalidArgument},
		"key in host":     {tool(func(h *brokerv1.HttpTool) { h.IdempotencyHeader = "Host" }), `{"city":"x"}`, protocol.CodeInvalidArgument},
	} {
		if _, err := d.Prepare(Call{Tool: tc.tool, Arguments: []byte(tc.args), IdempotencyKey: "k"}); protocol.CodeOf(err) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	keyed := tool(func(h *brokerv1.HttpTool) { h.IdempotencyHeader = "Idempotency-Key" })
	if _, err := d.Prepare(Call{Tool: keyed, Arguments: []byte(`{"city":"x"}`)}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a missing key: %v", err)
	}
}

func FuzzFill(f *testing.F) {
	f.Add("/forecast/{city}?days={days}", "../x", "1&admin=true")
	f.Add("/{city}", "..", "")
	f.Add("/a{city}{days}", "%2e", "\\")
	base := must2(url.Parse("https://api.example/v1"))
	d := New(Config{Name: "w", Base: base})
	f.Fuzz(func(t *testing.T, path, city, days string) {
		args := string(must(jsonObject(city, days)))
		r, err := d.request(Call{Tool: &brokerv1.HttpTool{Method: "GET", Path: path}, Arguments: []byte(args)})
		if err != nil {
			return
		}
		u := r.URL
		if u.Scheme != "https" || u.Host != "api.example" || !strings.HasPrefix(u.EscapedPath(), "/v1/") || u.Fragment != "" {
			t.Fatalf("%q left the destination: %s", path, u)
		}
		for _, segment := range strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if segment == ".." || segment == "." {
				t.Fatalf("%q has a dot segment: %s", path, u)
			}
		}
	})
}

func must2(u *url.URL, err error) *url.URL {
	if err != nil {
		panic(err)
	}
	return u
}

func jsonObject(city, days string) ([]byte, error) {
	return body([]string{"city", "days"}, &args{used: map[string]bool{}, values: map[string]json.RawMessage{"city": must(json.Marshal(city)), "days": must(json.Marshal(days))}})
}

// INV-17: whatever the upstream sends back, in headers, body, at the border of a
// cut, the credential is not in it.
func TestAnswerIsRedacted(t *testing.T) {
	filler := strings.Repeat("x", 100)
	forms := []string{token, url.QueryEscape(token), url.PathEscape(token), hex.EncodeToString([]byte(token)), strings.ReplaceAll(token, `"`, `\"`)}
	for i := range 3 {
		forms = append(forms, base64.StdEncoding.EncodeToString([]byte(filler[:i]+token+"yy")), base64.URLEncoding.EncodeToString([]byte(filler[:i]+token)))
	}
	answer := ""
	d := destination(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; echo="+url.QueryEscape(token))
		io.WriteString(w, answer)
	})
	known := secret.NewRedactor(credential(t))
	for _, form := range forms {
		for _, limit := range []int{1000, 60, 50 + len(form)/2, 50 + len(form), 50} {
			answer = filler[:50] + form + filler
			r, err := d.Prepare(Call{Tool: tool(nil), Arguments: []byte(`{"city":"x"}`), MaxBytes: limit})
			if err != nil {
				t.Fatal(err)
			}
			a, err := r.Send(t.Context(), Pass{Credential: credential(t)})
			if err != nil {
				t.Fatal(err)
			}
			if known.Found(string(a.Body)) || known.Found(a.ContentType) || !bytes.HasPrefix(a.Body, []byte(filler[:50])) || len(a.Body) > limit {
				t.Errorf("limit %d, form %q: %q %q", limit, form, a.Body, a.ContentType)
			}
			// Not even the beginning of it, beyond what innocent text has.
			if i := bytes.Index(a.Body, []byte(form[:6])); i >= 0 {
				t.Errorf("limit %d: the beginning of %q is left: %q", limit, form, a.Body)
			}
			if want := int64(len(answer)) > int64(limit); a.Truncated != want || a.Bytes != int64(len(answer)) {
				t.Errorf("limit %d: truncated=%v, %d bytes", limit, a.Truncated, a.Bytes)
			}
		}
	}
}

func TestBadEncodingIsNotRead(t *testing.T) {
	d := destination(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, "whatever")
	})
	if _, err := send(t, d, t.Context()); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
		t.Errorf("%v", err)
	}
}

func send(t *testing.T, d *Destination, ctx context.Context) (*Answer, error) {
	t.Helper()
	r, err := d.Prepare(Call{Tool: tool(func(h *brokerv1.HttpTool) { h.Method = "POST"; h.TimeoutMs = 60_000 }), Arguments: []byte(`{"city":"x"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return r.Send(ctx, Pass{Credential: credential(t)})
}

// INV-5: what may have happened is unknown; what never left is NotSent.
func TestOutcomes(t *testing.T) {
	var sent *NotSent
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	if _, err := send(t, destinationAt(t, closed.URL), t.Context()); !errors.As(err, &sent) || protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("nobody listens: %v", err)
	}
	sent = nil
	breaks := destination(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := send(t, breaks, t.Context()); errors.As(err, &sent) || protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
		t.Errorf("it broke off: %v", err)
	}
	half := destination(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
	})
	if _, err := send(t, half, t.Context()); errors.As(err, &sent) || protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
		t.Errorf("half an answer: %v", err)
	}
	arrived := make(chan struct{}, 1)
	hangs := destination(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	revoked := protocol.Errorf(protocol.CodePermissionDenied, "revoked")
	go func() { <-arrived; cancel(revoked) }()
	if _, err := send(t, hangs, ctx); errors.As(err, &sent) || protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || !errors.Is(err, revoked) {
		t.Errorf("cancelled in between: %v", err)
	}
	// A known bad status is a known outcome.
	bad := destination(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusTeapot) })
	if a, err := send(t, bad, t.Context()); err != nil || a.Status != http.StatusTeapot {
		t.Errorf("%+v %v", a, err)
	}
}

// A placeholder that would go out, or a credential without a place, fails closed.
func TestInjectFailsClosed(t *testing.T) {
	asked := 0
	d := destination(t, func(http.ResponseWriter, *http.Request) { asked++ })
	bare := tool(func(h *brokerv1.HttpTool) { h.Credential = "" })
	var sent *NotSent
	for name, tc := range map[string]struct {
		tool *brokerv1.HttpTool
		v    secret.Value
	}{"bound, no value": {tool(nil), secret.Value{}}, "value, not bound": {bare, credential(t)}} {
		r, err := d.Prepare(Call{Tool: tc.tool, Arguments: []byte(`{"city":"x"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Send(t.Context(), Pass{Credential: tc.v}); !errors.As(err, &sent) || protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked != 0 {
		t.Errorf("%d requests were sent", asked)
	}
	r, err := d.Prepare(Call{Tool: bare, Arguments: []byte(`{"city":"x"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Send(t.Context(), Pass{}); err != nil || asked != 1 {
		t.Errorf("without a credential: %v", err)
	}
}

// INV-17: an answer that is cut in the middle of a string of JSON shows no credential,
// nor a beginning of one, that the string repeats with escapes.
func TestCutAnswerIsRedacted(t *testing.T) {
	v, err := secret.New("c2VjcmV0+value/of+the+broker==")
	if err != nil {
		t.Fatal(err)
	}
	// As .NET writes a plus; as a server does that writes ASCII alone.
	all := ""
	for _, c := range v.Reveal() {
		all += fmt.Sprintf(`\u%04x`, c)
	}
	for _, echo := range []string{strings.ReplaceAll(v.Reveal(), "+", `\u002B`), all} {
		before := `{"trace":"Authorization: Bearer `
		body := before + echo + ` ` + strings.Repeat("x", 8192) + `"}`
		whole := before + secret.Mark + body[len(before)+len(echo):]
		for _, limit := range []int{1 << 20, 4096, len(before) + len(echo), len(before) + 12, len(before)} {
			var a Answer
			if err := a.read(strings.NewReader(body), secret.NewRedactor(v), limit); err != nil {
				t.Fatal(err)
			}
			if got := string(a.Body); !strings.HasPrefix(whole, got) || len(got) < len(before) || a.Truncated != (limit < len(body)) {
				t.Errorf("limit %d, truncated %v: %.120s", limit, a.Truncated, got)
			}
		}
	}
}

package forward

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func upstream(t *testing.T, name, base string, client *http.Client) *Upstream {
	t.Helper()
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Name: "r", Base: at, Protocol: name, Client: client})
}

// The verbs: all that reads, and nothing that writes.
func TestVerbs(t *testing.T) {
	fetch := "application/x-git-upload-pack-request"
	for _, c := range []struct {
		protocol, method, target, content string
		admitted                          bool
	}{
		{Go, "GET", "/example.test/m/@v/v1.0.0.zip", "", true},
		{Go, "HEAD", "/sumdb/sum.golang.org/supported", "", true},
		{Go, "POST", "/example.test/m", "", false},
		{NPM, "GET", "/@scope%2fname", "", true},
		{NPM, "PUT", "/name", "application/json", false},
		{NPM, "POST", "/-/npm/v1/security/advisories/bulk", "application/json", false},
		{NPM, "DELETE", "/-/user/token/x", "", false},
		{Git, "GET", "/a/b.git/info/refs?service=git-upload-pack", "", true},
		{Git, "POST", "/a/b.git/git-upload-pack", fetch, true},
		{Git, "GET", "/a/b.git/info/refs?service=git-receive-pack", "", false},
		{Git, "GET", "/a/b.git/info/refs", "", false},
		{Git, "GET", "/a/b.git/info/refs?service=git-upload-pack&service=git-receive-pack", "", false},
		{Git, "POST", "/a/b.git/git-upload-pack", "application/json", false},
		{Git, "POST", "/a/b.git/git-upload-pack?x=y", fetch, false},
		{Git, "POST", "/a/b.git/git-receive-pack", "application/x-git-receive-pack-request", false},
		{Git, "PROPFIND", "/a/b.git/info/refs?service=git-upload-pack", "", false},
		{Git, "GET", "/api/v3/user/repos", "", false},
	} {
		u := upstream(t, c.protocol, "https://r.example", nil)
		_, err := u.Prepare(Ask{Method: c.method, Target: c.target, Header: http.Header{"Content-Type": {c.content}}, Body: http.NoBody})
		if (err == nil) != c.admitted || err != nil && protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("%s %s %s: %v", c.protocol, c.method, c.target, err)
		}
	}
}

// No spelling of a path leaves host, scheme and base path.
func TestNoTargetLeaves(t *testing.T) {
	u := upstream(t, Go, "https://r.example/base/", nil)
	for _, bad := range []string{"", "x", "//evil.example/x", "https://evil.example/x", "/..", "/../x", "/a/./b", "/%2e%2e/x", "/a%2f..%2f..%2fx",
		"/a%5c..%5cx", `/a\..\x`, "/a b", "/a\r\nHost: evil.example", "/a%0ax", "/a%00", "/a#b", "@evil.example/", "/%zz", "/" + strings.Repeat("a", maxTarget)} {
		if r, err := u.Prepare(Ask{Method: "GET", Target: bad, Header: http.Header{}}); err == nil {
			t.Errorf("%q leads to %s", bad, r.http.URL)
		}
	}
	for good, want := range map[string]string{"/x/@v/list": "https://r.example/base/x/@v/list", "/@a%2fb?c=d": "https://r.example/base/@a%2fb?c=d", "/a...b": "https://r.example/base/a...b", "/": "https://r.example/base/"} {
		r, err := u.Prepare(Ask{Method: "GET", Target: good, Header: http.Header{}})
		if err != nil || r.http.URL.String() != want {
			t.Errorf("%q: %v, %v", good, r, err)
		}
	}
}

// A body goes out whole and bounded, an answer comes back as it was packed.
func TestBodiesPass(t *testing.T) {
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		got = fmt.Sprint(len(b), err == nil)
		w.Header().Set("Content-Encoding", "gzip")
		fmt.Fprint(w, "packed")
	}))
	defer s.Close()
	u := upstream(t, Git, s.URL, s.Client())
	send := func(size int) (*httptest.ResponseRecorder, int, error) {
		r, err := u.Prepare(Ask{Method: "POST", Target: "/r/git-upload-pack", Body: strings.NewReader(strings.Repeat("x", size)), Length: -1,
			Header: http.Header{"Content-Type": {"application/x-git-upload-pack-request"}, "Accept-Encoding": {"gzip"}}})
		if err != nil {
			t.Fatal(err)
		}
		w, moved := httptest.NewRecorder(), 0
		_, err = r.Send(t.Context(), w, Passage{TakeFunc: func(n int) error { moved += n; return nil }})
		return w, moved, err
	}
	w, moved, err := send(1 << 20)
	if err != nil || got != "1048576 true" || w.Body.String() != "packed" || w.Header().Get("Content-Encoding") != "gzip" || moved != 1<<20+len("packed") {
		t.Errorf("%v, the registry got %s, %q came back, %d moved", err, got, w.Body, moved)
	}
	if _, _, err := send(MaxBody + 1); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("too much went out: %v", err)
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"/x", "/a%2f..", "//h", "/@s%2fn?a=b#c"} {
		f.Add(s)
	}
	base, err := url.Parse("https://r.example/base")
	if err != nil {
		f.Fatal(err)
	}
	u := New(Config{Name: "r", Base: base, Protocol: Go})
	f.Fuzz(func(t *testing.T, s string) {
		at, err := u.target(s)
		if err == nil && (at.Host != "r.example" || at.Scheme != "https" || !strings.HasPrefix(at.Path, "/base/") || strings.Contains(at.Path+"/", "/../")) {
			t.Errorf("%q leads to %s", s, at)
		}
	})
}

// What is no text is not read for escapes; all else is, also where nobody says what it is.
func TestKindsOfBodies(t *testing.T) {
	for kind, want := range map[string]bool{
		"application/octet-stream": true, "application/gzip": true, "image/png": true, "application/x-tar; charset=binary": true,
		"application/vnd.oci.image.layer.v1.tar+gzip": true, "application/vnd.docker.image.rootfs.diff.tar.gzip": true, "application/x-git-upload-pack-result": true,
		"application/json": false, "text/html; charset=utf-8": false, "application/vnd.npm.install-v1+json": false, "application/vnd.oci.image.manifest.v1+json": false, "": false, "gzip": false, "application/gzip2": false,
	} {
		if isBytes(kind) != want {
			t.Errorf("%q: %v", kind, !want)
		}
	}
}

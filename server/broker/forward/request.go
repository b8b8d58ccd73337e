package forward

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Bounds of a request.
const (
	maxTarget = 4 << 10
	// MaxBody of a request: what a fetch of git says about what it has.
	MaxBody = 8 << 20
)

// Config of an Upstream.
type Config struct {
	// Name of the destination.
	Name     string
	Base     *url.URL
	Protocol string
	// Credential and how it is sent; empty: none is.
	Credential string
	Binding    secret.Binding
	Client     *http.Client // see package egress
}

// Upstream is one registry.
type Upstream struct{ cfg Config }

// New makes an Upstream.
func New(cfg Config) *Upstream { return &Upstream{cfg: cfg} }

// Protocol that is spoken there.
func (u *Upstream) Protocol() string { return u.cfg.Protocol }

// Base is where it is, for people.
func (u *Upstream) Base() string { return u.cfg.Base.Redacted() }

// Credential that goes along; empty: none.
func (u *Upstream) Credential() string { return u.cfg.Credential }

// Close its idle connections.
func (u *Upstream) Close() { u.cfg.Client.CloseIdleConnections() }

// Ask is what sandboxed code asks for.
type Ask struct {
	Method string
	// Target is path and query, as on a request line (RFC 9112, origin form).
	Target string
	Header http.Header
	Body   io.Reader
	// Length of the body; negative where it is not known.
	Length int64
}

// Request is an admitted one that waits for its credential.
type Request struct {
	u    *Upstream
	http *http.Request
}

// passed are the headers that go out. What identifies somebody does not.
var passed = []string{"Accept", "Accept-Encoding", "Content-Encoding", "Content-Type", "Git-Protocol", "If-Modified-Since", "If-None-Match", "Range", "User-Agent"}

// Prepare checks all but the credential. Nothing is sent.
func (u *Upstream) Prepare(a Ask) (*Request, error) {
	at, err := u.target(a.Target)
	if err != nil {
		return nil, err
	}
	v, err := u.admit(a.Method, at, a.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if v.accepts != "" && a.Body != nil {
		body = a.Body
	}
	req, err := http.NewRequest(a.Method, at.String(), body)
	if err != nil {
		return nil, u.invalid("the request cannot be made")
	}
	if body != nil {
		req.ContentLength = max(a.Length, -1)
	}
	for _, name := range passed {
		if value := a.Header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	// The transport unpacks nothing: bytes and digests are the registry's own. What is
	// to be redacted must be readable.
	if u.cfg.Credential != "" || req.Header.Get("Accept-Encoding") == "" {
		req.Header.Set("Accept-Encoding", "identity")
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "bivouac-broker")
	}
	return &Request{u: u, http: req}, nil
}

// target places a path below the base, where no spelling of it leaves.
func (u *Upstream) target(text string) (*url.URL, error) {
	if len(text) > maxTarget || !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' || r == '#' }) {
		return nil, u.invalid("the path is too long, or holds what no path may")
	}
	asked, err := url.ParseRequestURI(text)
	if err != nil || asked.Host != "" || asked.Scheme != "" {
		return nil, u.invalid("the path cannot be read")
	}
	for _, segment := range strings.FieldsFunc(asked.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." || strings.ContainsFunc(segment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, u.invalid("the path has dots or control characters for a segment")
		}
	}
	base := strings.TrimSuffix(u.cfg.Base.EscapedPath(), "/")
	whole := u.cfg.Base.Scheme + "://" + u.cfg.Base.Host + base + asked.EscapedPath()
	if asked.RawQuery != "" {
		whole += "?" + asked.RawQuery
	}
	at, err := url.Parse(whole)
	if err != nil || !u.covers(at) {
		return nil, u.invalid("the path leaves the destination")
	}
	return at, nil
}

// covers reports a URL of this registry.
func (u *Upstream) covers(at *url.URL) bool {
	return at.Scheme == u.cfg.Base.Scheme && at.Host == u.cfg.Base.Host && at.User == nil &&
		strings.HasPrefix(at.EscapedPath(), strings.TrimSuffix(u.cfg.Base.EscapedPath(), "/")+"/")
}

func (u *Upstream) invalid(why string) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "destination %s: %s", u.cfg.Name, why)
}

// Wire is the request as it will leave, without body and credential.
func (r *Request) Wire() *consul.Request {
	w := &consul.Request{Method: r.http.Method, Path: r.http.URL.EscapedPath(), Header: r.http.Header.Clone()}
	w.Header.Set("Host", r.http.URL.Host)
	if r.u.cfg.Credential != "" {
		w.Sealed = []string{r.u.cfg.Binding.Header}
	}
	return w
}

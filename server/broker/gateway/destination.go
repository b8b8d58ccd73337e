package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// Bounds of a call.
const (
	DefaultTimeout = 30 * time.Second
	MaxTimeout     = 5 * time.Minute
	MaxBytes       = 1 << 20 // of an answer's body
	maxCount       = 8 << 20 // how far a longer body is counted
)

// Binding says how a credential is sent to a destination.
type Binding = secret.Binding

// Methods that a tool may use when a destination names none.
var Methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// Config of a Destination.
type Config struct {
	Name string
	Base *url.URL
	// Bindings by credential name.
	Bindings map[string]Binding
	// Issued are credentials without a binding, by name, with the headers that they fill:
	// whoever sends a call carries them (Pass.Carrier).
	Issued map[string][]string
	// Methods that are allowed; empty means Methods.
	Methods []string
	// Retries of what may be sent again, beyond the first sending.
	Retries int
	// Paging of what is listed there; nil: an answer is one page.
	Paging *Paging
	Client *http.Client // see package egress
}

// Destination is a place that the broker's file names.
type Destination struct{ cfg Config }

// New makes a destination.
func New(cfg Config) *Destination {
	if len(cfg.Methods) == 0 {
		cfg.Methods = Methods
	}
	return &Destination{cfg: cfg}
}

// Name of the destination.
func (d *Destination) Name() string { return d.cfg.Name }

// URL of the destination.
func (d *Destination) URL() string { return d.cfg.Base.String() }

// Credentials that are bound to it, sorted.
func (d *Destination) Credentials() []string {
	var out []string
	for name := range d.cfg.Bindings {
		out = append(out, name)
	}
	for name := range d.cfg.Issued {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Close its idle connections.
func (d *Destination) Close() { d.cfg.Client.CloseIdleConnections() }

// Request is a filled template that waits for its credential.
type Request struct {
	d          *Destination
	binding    *Binding
	issued     []string // headers of a credential without a binding; nil: it has none
	http       *http.Request
	timeout    time.Duration
	maxBytes   int
	class      class
	Repeatable bool // the upstream makes a repetition under the same key harmless
}

// Call is one call of a tool.
type Call struct {
	Tool *brokerv1.HttpTool
	// Arguments as canonical JSON, already compared with their digest.
	Arguments      []byte
	IdempotencyKey string
	// MaxBytes of the answer's body; zero or too large means MaxBytes.
	MaxBytes int
}

// Admits says whether the destination takes such a tool: its method, and its
// credential.
func (d *Destination) Admits(t *brokerv1.HttpTool) error {
	if !slices.Contains(d.cfg.Methods, t.GetMethod()) {
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s does not allow method %q: it allows %s (broker.hcl)",
			d.cfg.Name, t.GetMethod(), strings.Join(d.cfg.Methods, ", "))
	}
	if name := t.GetCredential(); name != "" {
		if _, bound := d.cfg.Bindings[name]; !bound && d.cfg.Issued[name] == nil {
			return protocol.Errorf(protocol.CodePolicyDenied,
				"credential %q is not bound to destination %s in broker.hcl, so it is never sent there", name, d.cfg.Name)
		}
	}
	return nil
}

// Prepare checks and fills everything but the credential.
func (d *Destination) Prepare(c Call) (*Request, error) {
	t := c.Tool
	r := &Request{d: d, timeout: DefaultTimeout, maxBytes: MaxBytes}
	if ms := t.GetTimeoutMs(); ms > 0 {
		r.timeout = min(time.Duration(ms)*time.Millisecond, MaxTimeout)
	}
	if c.MaxBytes > 0 {
		r.maxBytes = min(c.MaxBytes, MaxBytes)
	}
	if err := d.Admits(t); err != nil {
		return nil, err
	}
	if b, bound := d.cfg.Bindings[t.GetCredential()]; bound {
		r.binding = &b
	}
	r.issued = d.cfg.Issued[t.GetCredential()]
	var err error
	if r.http, err = d.request(c); err != nil {
		return nil, err
	}
	r.class, r.Repeatable = classOf(t)
	return r, r.idempotency(t.GetIdempotencyHeader(), c.IdempotencyKey)
}

func (d *Destination) request(c Call) (*http.Request, error) {
	a, err := parseArgs(c.Arguments)
	if err != nil {
		return nil, err
	}
	path, query, err := fill(c.Tool.GetPath(), a)
	if err != nil {
		return nil, err
	}
	content, err := body(c.Tool.GetBody(), a)
	if err != nil {
		return nil, err
	}
	if err := a.leftover(); err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(d.cfg.Base.EscapedPath(), "/")
	text := d.cfg.Base.Scheme + "://" + d.cfg.Base.Host + base + path
	if query != "" {
		text += "?" + query
	}
	u, err := url.Parse(text)
	if err != nil || u.Host != d.cfg.Base.Host || u.Scheme != d.cfg.Base.Scheme || u.User != nil || !strings.HasPrefix(u.EscapedPath(), base+"/") {
		return nil, invalid("the filled path leaves destination %s", d.cfg.Name)
	}
	if strings.ContainsAny(text, "{}") {
		return nil, invalid("a placeholder is left in the path")
	}
	return newHTTP(c.Tool.GetMethod(), u, content)
}

func newHTTP(method string, u *url.URL, content []byte) (*http.Request, error) {
	var req *http.Request
	var err error
	if content == nil {
		req, err = http.NewRequest(method, u.String(), nil)
	} else {
		req, err = http.NewRequest(method, u.String(), strings.NewReader(string(content)))
	}
	if err != nil {
		return nil, invalid("the request cannot be made")
	}
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/*;q=0.9, */*;q=0.5")
	req.Header.Set("User-Agent", "bivouac-broker")
	return req, nil
}

// Wire is the request as it will leave, without its body and its credential.
func (r *Request) Wire() *consul.Request { return r.wire(r.http) }

func (r *Request) wire(req *http.Request) *consul.Request {
	w := &consul.Request{Method: req.Method, Path: req.URL.EscapedPath(), Header: req.Header.Clone()}
	w.Header.Set("Host", req.URL.Host)
	w.Sealed = r.sealed()
	return w
}

// sealed headers hold the credential.
func (r *Request) sealed() []string {
	if r.binding != nil {
		return []string{r.binding.Header}
	}
	return r.issued
}

// idempotency sets the key. A tool that names a header but gets no key would be
// repeated without one: it is refused.
func (r *Request) idempotency(header, key string) error {
	if header == "" {
		return nil
	}
	switch {
	case !httpguts.ValidHeaderFieldName(header) || secret.ReservedHeader(header) || slices.ContainsFunc(r.sealed(), func(h string) bool { return strings.EqualFold(h, header) }):
		return invalid("%q is no header for an idempotency key", header)
	case key == "" || len(key) > 256 || !httpguts.ValidHeaderFieldValue(key):
		return invalid("the idempotency key is missing or cannot stand in a header")
	}
	r.http.Header.Set(header, key)
	return nil
}

// inject puts the credential into its header. What would go out with a
// placeholder fails closed.
func (r *Request) inject(h http.Header, v secret.Value) error {
	switch {
	case r.binding == nil && v.IsZero():
		return nil
	case r.binding == nil || v.IsZero():
		return protocol.Errorf(protocol.CodePolicyDenied, "credential and binding of destination %s do not meet: nothing was sent", r.d.cfg.Name)
	}
	return r.binding.Put(h, v, "destination "+r.d.cfg.Name)
}

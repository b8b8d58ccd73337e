package ssh

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	wire "golang.org/x/crypto/ssh"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/protocol/brokerv1"
)

// defaultTimeout of a tool that names none.
const defaultTimeout = 30 * time.Second

// maxRead bounds what a command may write before it is cut off. What is beyond the
// answer's own bound is counted and thrown away.
const maxRead = 64 << 20

// Config of an Endpoint.
type Config struct {
	// Name of the destination.
	Name string
	// User of the host in whose name commands run.
	User string
	// HostKeys by which the host is known, and HostCAs that certify its key. One of both
	// is there.
	HostKeys, HostCAs []wire.PublicKey
	Commands          map[string]Command
	// Credentials that are issued for it, by name.
	Credentials []string
	// Reach is the way there; its Base has the scheme ssh.
	Reach egress.Config
	// MaxRead in place of maxRead, for tests.
	MaxRead int64
}

// Endpoint is one host of the broker's file.
type Endpoint struct{ cfg Config }

// New makes an endpoint. It connects nowhere.
func New(cfg Config) *Endpoint {
	if cfg.MaxRead == 0 {
		cfg.MaxRead = maxRead
	}
	return &Endpoint{cfg: cfg}
}

// CheckURL refuses addresses that no host of SSH may have.
func CheckURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "ssh" || u.Hostname() == "":
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q must be ssh:// with a host, and a port where it is not 22", text)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q may hold a host and a port alone: user in the ssh block says who signs in", u.Redacted())
	case egress.Port(u) == 0:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q names no port that exists", text)
	}
	return u, nil
}

// Commands of the host, sorted.
func (e *Endpoint) Commands() (out []string) {
	for name := range e.cfg.Commands {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Admits says whether a definition's tool can be one of this host: a declared command,
// its look-up where the definition relies on it, and a credential that is issued for it.
func (e *Endpoint) Admits(t *brokerv1.HttpTool) error {
	s := t.GetSsh()
	switch {
	case s == nil:
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s is a host of SSH: only tools of kind \"ssh\" go there", e.cfg.Name)
	case t.GetMcp() != nil || t.GetMethod() != "" || t.GetPath() != "" || len(t.GetBody()) > 0 || t.GetIdempotencyHeader() != "":
		return protocol.Errorf(protocol.CodeInvalidArgument, "a command on a host has no method, path, body or header")
	}
	c, declared := e.cfg.Commands[s.GetCommand()]
	switch {
	case !declared:
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s has no command %.60q in broker.hcl: it has %s", e.cfg.Name, s.GetCommand(), strings.Join(e.Commands(), ", "))
	case (s.GetInspectable() || s.GetInspects()) && len(c.Inspect) == 0:
		return protocol.Errorf(protocol.CodePolicyDenied, "the command %q of destination %s has no inspect in broker.hcl, and the tool's recovery is \"inspectable\": give it one, or call it \"opaque\"", s.GetCommand(), e.cfg.Name)
	case t.GetRepeatable() && !s.GetInspects() && !c.Idempotent && !c.keyed():
		// As an http tool, whose POST is idempotent only with a header for its key. INV-5.
		return protocol.Errorf(protocol.CodePolicyDenied, "the command %q of destination %s is not said to be idempotent in broker.hcl, and the tool's recovery is: give its run {%s}, write idempotent = true where a second run does nothing more, or call the tool \"opaque\"", s.GetCommand(), e.cfg.Name, keyName)
	case t.GetCredential() == "":
		return protocol.Errorf(protocol.CodePolicyDenied, "a command on a host needs a credential: one of %s", strings.Join(e.cfg.Credentials, ", "))
	case !slices.Contains(e.cfg.Credentials, t.GetCredential()):
		return protocol.Errorf(protocol.CodePolicyDenied, "credential %q is not bound to destination %s in broker.hcl, so it is never used there", t.GetCredential(), e.cfg.Name)
	}
	return nil
}

// Call is one call of a tool.
type Call struct {
	Tool *brokerv1.HttpTool
	// Arguments as canonical JSON, already compared with their digest.
	Arguments      []byte
	IdempotencyKey string
	// MaxBytes of the answer; zero or too large means gateway.MaxBytes.
	MaxBytes int
}

// Run is a command that is filled, and waits for its certificate.
type Run struct {
	e        *Endpoint
	name     string
	inspects bool
	line     string
	maxBytes int
	// Timeout of everything from the connection on.
	Timeout time.Duration
}

// Prepare checks and fills everything but the certificate.
func (e *Endpoint) Prepare(c Call) (*Run, error) {
	if err := e.Admits(c.Tool); err != nil {
		return nil, err
	}
	s := c.Tool.GetSsh()
	command := e.cfg.Commands[s.GetCommand()]
	line, err := command.line(s.GetInspects(), c.Arguments, c.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	r := &Run{e: e, name: s.GetCommand(), inspects: s.GetInspects(), line: line, maxBytes: gateway.MaxBytes, Timeout: defaultTimeout}
	if ms := c.Tool.GetTimeoutMs(); ms > 0 {
		r.Timeout = time.Duration(ms) * time.Millisecond
	}
	r.Timeout = min(r.Timeout, command.Timeout)
	if c.MaxBytes > 0 {
		r.maxBytes = min(c.MaxBytes, gateway.MaxBytes)
	}
	return r, nil
}

// Line is exactly what is run: what a certificate is bound to.
func (r *Run) Line() string { return r.line }

// Wire is the command as paths are asked about it: POST of its name, and GET for its
// look-up.
func (r *Run) Wire() *consul.Request {
	w := &consul.Request{Method: http.MethodPost, Path: "/" + r.name, Header: http.Header{"Host": {egress.HostPort(r.e.cfg.Reach.Base)}}}
	if r.inspects {
		w.Method = http.MethodGet
	}
	return w
}

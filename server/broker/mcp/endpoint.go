package mcp

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/sandbox"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// Bounds of one server, from the broker's own file.
type Bounds struct {
	// Timeout of one call with everything that comes before it; a tool's own may be
	// shorter.
	Timeout time.Duration
	// MaxAnswer in bytes of one answer, and of all pages of a list.
	MaxAnswer int
	MaxTools  int
	// MaxSchema in bytes, and MaxSchemaDepth, of one tool's input schema.
	MaxSchema, MaxSchemaDepth int
}

// DefaultBounds where broker.hcl says nothing.
var DefaultBounds = Bounds{Timeout: time.Minute, MaxAnswer: 4 << 20, MaxTools: 256, MaxSchema: 64 << 10, MaxSchemaDepth: 32}

const (
	defaultTimeout = 30 * time.Second // of a tool that names none
	// MaxBytes of what a model may get of one answer.
	MaxBytes = 1 << 20
)

// Config of an Endpoint.
type Config struct {
	// Name of the destination.
	Name string
	// URL is the exact endpoint: nothing else is ever asked.
	URL *url.URL
	// Bindings by credential name.
	Bindings map[string]secret.Binding
	// Credential with which tools are listed for a person; empty: none is used.
	Credential string
	Bounds     Bounds
	Client     *http.Client // see package egress
	// Local is the server as a program of this machine, in the place of URL and Client,
	// with the sandboxes that it runs in and what tells this broker's from others'.
	Local   *Local
	Sandbox sandbox.Backend
	Broker  string
}

// Endpoint is one MCP server of the broker's file.
type Endpoint struct {
	cfg    Config
	runner *runner // of a local server
}

// New makes an endpoint.
func New(cfg Config) *Endpoint {
	e := &Endpoint{cfg: cfg}
	if cfg.Local != nil {
		e.runner = newRunner(cfg.Name, cfg.Broker, *cfg.Local, cfg.Sandbox)
	}
	return e
}

// Close its idle connections.
func (e *Endpoint) Close() {
	if e.cfg.Client != nil {
		e.cfg.Client.CloseIdleConnections()
	}
}

// Credential with which tools are listed for a person.
func (e *Endpoint) Credential() string { return e.cfg.Credential }

// Credentials that are bound to it, sorted.
func (e *Endpoint) Credentials() (out []string) {
	for name := range e.cfg.Bindings {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Timeout of one call.
func (e *Endpoint) Timeout(t *brokerv1.HttpTool) time.Duration {
	asked := defaultTimeout
	if ms := t.GetTimeoutMs(); ms > 0 {
		asked = time.Duration(ms) * time.Millisecond
	}
	return min(asked, e.cfg.Bounds.Timeout)
}

// Admits says whether a definition's tool can be one of this server: exact name,
// pinned schema, bound credential.
func (e *Endpoint) Admits(t *brokerv1.HttpTool) error {
	m := t.GetMcp()
	switch {
	case m == nil:
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s is an MCP server: only tools of kind \"mcp\" go there", e.cfg.Name)
	case t.GetMethod() != "" || t.GetPath() != "" || len(t.GetBody()) > 0 || t.GetIdempotencyHeader() != "":
		return protocol.Errorf(protocol.CodeInvalidArgument, "a tool of an MCP server has no method, path, body or header")
	case !protocol.MCPToolName(m.GetTool()):
		return protocol.Errorf(protocol.CodeInvalidArgument, "%.130q is no name of a tool: exact names alone are called", m.GetTool())
	case !canonical.IsDigest(m.GetSchemaDigest()):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the tool %s is not pinned to a schema", m.GetTool())
	}
	if name := t.GetCredential(); name != "" {
		if _, bound := e.cfg.Bindings[name]; !bound {
			return protocol.Errorf(protocol.CodePolicyDenied, "credential %q is not bound to destination %s in broker.hcl, so it is never sent there", name, e.cfg.Name)
		}
	}
	return nil
}

// Access is what one session may use.
type Access struct {
	// Name of the credential, its value, and what it was before; empty: none.
	Name       string
	Credential secret.Value
	Before     []secret.Value
	// RenewFunc gives another value in the place of one that the server refused (401)
	// before a tool was called, and what was before it; nil: there is none.
	RenewFunc func(context.Context) (v secret.Value, before []secret.Value, err error)
	// LeavesFunc is asked about every request before it leaves, and its no ends the
	// session. MayFunc is asked about what could be left out: a refusal that a server
	// waits for, the end of a session. Nil allows everything.
	LeavesFunc, MayFunc func(*consul.Request) error
}

func ask(f func(*consul.Request) error, w *consul.Request) error {
	if f == nil {
		return nil
	}
	return f(w)
}

// inject the credential. What would go out without its value, or without a binding
// for it, fails closed.
func (e *Endpoint) inject(h http.Header, a Access) error {
	if a.Name == "" && a.Credential.IsZero() {
		return nil
	}
	b, bound := e.cfg.Bindings[a.Name]
	if !bound {
		return protocol.Errorf(protocol.CodePolicyDenied, "credential and binding of destination %s do not meet: nothing was sent", e.cfg.Name)
	}
	return b.Put(h, a.Credential, "destination "+e.cfg.Name)
}

// sealed headers hold the credential.
func (e *Endpoint) sealed(a Access) []string {
	if b, bound := e.cfg.Bindings[a.Name]; bound {
		return []string{b.Header}
	}
	return nil
}

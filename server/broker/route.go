package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"os"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/forward"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/mcp"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
	"bivouac/server/broker/ssh"
)

// route is one model route with its provider.
type route struct {
	cfg      Model
	price    tariff
	provider *provider.Client
	close    func()
}

// outlet is one destination of http tools.
type outlet struct {
	*gateway.Destination
	boundaries []string
	// issued are the credentials that an engine issues, by name.
	issued map[string]*issued.From
	// reach is the way there, for a connection with a certificate of its own.
	reach egress.Config
	// packages is the way of sandboxed code; nil where there is none.
	packages *forward.Upstream
	bounds   Egress
	// mcp is the server's client; nil where the destination is none.
	mcp *mcp.Endpoint
	// ssh is the host; nil where the destination is none.
	ssh *ssh.Endpoint
}

// admits a tool: one of an MCP server or of a host where it is one, and an http tool
// elsewhere.
func (o *outlet) admits(t *brokerv1.HttpTool) error {
	switch {
	case o.ssh != nil:
		return o.ssh.Admits(t)
	case t.GetSsh() != nil:
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s is no host of SSH: it needs an ssh block in broker.hcl", o.Name())
	case o.mcp != nil:
		return o.mcp.Admits(t)
	case t.GetMcp() != nil:
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s is no MCP server: it needs an mcp block in broker.hcl", o.Name())
	}
	return o.Admits(t)
}

func (o *outlet) close() {
	o.Close()
	if o.packages != nil {
		o.packages.Close()
	}
	if o.mcp != nil {
		o.mcp.Close()
	}
}

func (c Config) openRoute(m Model, n egress.Network) (*route, error) {
	base, err := egress.CheckBase(m.BaseURL, m.AllowPrivate)
	if err != nil {
		return nil, err
	}
	ca, err := c.readCA(m.CAFile)
	if err != nil {
		return nil, err
	}
	client, err := egress.NewClient(egress.Config{Name: "model route " + m.Name, Base: base, AllowPrivate: m.AllowPrivate, CA: ca, Network: n})
	if err != nil {
		return nil, err
	}
	first, e1 := time.ParseDuration(m.FirstTimeout)
	idle, e2 := time.ParseDuration(m.IdleTimeout)
	if err := errors.Join(e1, e2); err != nil {
		return nil, err
	}
	p, err := provider.New(provider.Config{
		Route: m.Name, Format: m.Format, Base: base, Client: client, Credential: m.Credential, LimitField: m.LimitField,
		Binding: secret.Binding{Header: m.CredentialHeader, Format: m.CredentialFormat}, First: first, Idle: idle,
	})
	if err != nil {
		return nil, err
	}
	return &route{cfg: m, price: m.tariff(), close: client.CloseIdleConnections, provider: p}, nil
}

// openCommand is a destination that runs a program, and is reached over no network.
func (c Config) openCommand(d Destination, l *mcp.Local, p Ports) *outlet {
	sum := sha256.Sum256([]byte(p.CallLog))
	out := c.openOther(d, &url.URL{Scheme: "stdio", Path: l.Command[0]})
	out.mcp = mcp.New(mcp.Config{Name: d.Name, Bounds: d.MCP.bounds(), Local: l, Sandbox: p.Sandbox, Broker: hex.EncodeToString(sum[:4])})
	return out
}

// openOther is a destination that speaks no HTTP.
func (c Config) openOther(d Destination, base *url.URL) *outlet {
	from, names := map[string]*issued.From{}, map[string][]string{}
	for _, cr := range d.Credentials {
		if cr.From != nil {
			from[cr.Name], names[cr.Name] = cr.From, []string{}
		}
	}
	return &outlet{
		boundaries: d.DataBoundaries, issued: from,
		Destination: gateway.New(gateway.Config{Name: d.Name, Base: base, Issued: names, Client: &http.Client{}}),
	}
}

func (c Config) openDestination(d Destination, p Ports) (*outlet, error) {
	n := p.Egress
	if l := d.MCP.local(); l != nil {
		return c.openCommand(d, l, p), nil
	}
	if d.SSH != nil {
		return c.openSSH(d, p)
	}
	base, err := egress.CheckBase(d.URL, d.AllowPrivate)
	if err != nil {
		return nil, err
	}
	ca, err := c.readCA(d.CAFile)
	if err != nil {
		return nil, err
	}
	reach := egress.Config{Name: "destination " + d.Name, Base: base, AllowPrivate: d.AllowPrivate, CA: ca, Network: n}
	client, err := egress.NewClient(reach)
	if err != nil {
		return nil, err
	}
	bindings, carried, from := map[string]gateway.Binding{}, map[string][]string{}, map[string]*issued.From{}
	for _, b := range d.Credentials {
		if b.From == nil {
			bindings[b.Name] = gateway.Binding{Header: b.Header, Format: b.Format}
			continue
		}
		from[b.Name] = b.From
		if binding, ok := b.From.Binding(); ok {
			bindings[b.Name] = binding
		} else {
			carried[b.Name] = b.From.Headers()
		}
	}
	out := &outlet{boundaries: d.DataBoundaries, issued: from, reach: reach, Destination: gateway.New(gateway.Config{
		Name: d.Name, Base: base, Bindings: bindings, Issued: carried, Methods: d.Methods, Client: client, Retries: d.retries(), Paging: d.Pages.paging(),
	})}
	if d.MCP != nil {
		out.mcp = mcp.New(mcp.Config{Name: d.Name, URL: base, Bindings: bindings, Credential: d.MCP.Credential, Bounds: d.MCP.bounds(), Client: client})
		return out, nil
	}
	if d.Egress == nil {
		return out, nil
	}
	// Connections of its own: what a sandbox asks for shares none with a tool.
	packages, err := egress.NewClient(egress.Config{Name: "destination " + d.Name, Base: base, AllowPrivate: d.AllowPrivate, CA: ca, Network: n, HeaderTimeout: forward.Idle})
	out.bounds = *d.Egress
	out.packages = forward.New(forward.Config{
		Name: d.Name, Base: base, Protocol: d.Egress.Protocol, Credential: d.Egress.Credential, Binding: bindings[d.Egress.Credential], Client: packages,
	})
	return out, err
}

func (m *MCP) bounds() mcp.Bounds {
	timeout, err := time.ParseDuration(m.Timeout)
	if err != nil {
		timeout = mcp.DefaultBounds.Timeout // a checked configuration has one
	}
	return mcp.Bounds{Timeout: timeout, MaxAnswer: m.MaxAnswerKiB << 10, MaxTools: m.MaxTools, MaxSchema: m.MaxSchemaKiB << 10, MaxSchemaDepth: m.MaxSchemaDepth}
}

func (c Config) readCA(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(c.Path(name))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "ca_file cannot be read: %w", err)
	}
	return b, nil
}

func (r *route) describe() *brokerv1.ModelRoute {
	return &brokerv1.ModelRoute{
		Name: r.cfg.Name, ProviderModel: r.cfg.Model, DataBoundaries: r.cfg.DataBoundaries,
		InputMicroUsdPerMtok: r.price.plain.InputPerMTok, OutputMicroUsdPerMtok: r.price.plain.OutputPerMTok, Priced: r.price.plain.Known,
	}
}

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

const (
	// MaxAnswer bounds what a server may answer.
	MaxAnswer = 16 << 20
	// DefaultTimeout of one request.
	DefaultTimeout = 5 * time.Second

	maxConnections = 64
)

// Config of a connection.
type Config struct {
	// Address such as https://vault.example:8200.
	Address string
	// CAFile holds certificates (PEM) to trust instead of the machine's.
	CAFile string
	// Namespace of OpenBao or Vault Enterprise; empty: the root.
	Namespace string
	// CertFile and KeyFile are shown to the server where both are named. They are
	// read for every connection: renewed files need no restart.
	CertFile, KeyFile string
	// Timeout of one request; zero: DefaultTimeout.
	Timeout time.Duration
	// Dial replaces the network; nil: the machine's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client of one server. It is safe for concurrent use and holds no token.
type Client struct {
	api     *api.Client
	timeout time.Duration
}

// New checks the configuration. It asks nothing.
func New(c Config) (*Client, error) {
	if err := CheckAddress(c.Address); err != nil {
		return nil, err
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "ca_file: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "ca_file: %s holds no certificate (PEM)", c.CAFile)
		}
	}
	if c.CertFile != "" && c.KeyFile != "" {
		trust.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	wire := &http.Transport{
		DialContext: c.Dial, TLSClientConfig: trust, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute,
		MaxIdleConnsPerHost: maxConnections, MaxConnsPerHost: maxConnections,
	}
	a, err := api.NewClient(&api.Config{Address: c.Address, HttpClient: &http.Client{
		Transport:     bounded{wire},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the connection to %s cannot be set up: %w", c.Address, err)
	}
	// The library fills these from the environment.
	a.ClearToken()
	a.SetHeaders(http.Header{api.RequestHeaderName: {"true"}})
	if c.Namespace != "" {
		a.SetNamespace(c.Namespace)
	}
	return &Client{api: a, timeout: c.Timeout}, nil
}

// Address of the server.
func (c *Client) Address() string { return c.api.Address() }

// bounded cuts answers off that are larger than any that is expected.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, MaxAnswer)
	}
	return resp, err
}

// CloseIdleConnections lets go of what is not in use.
func (b bounded) CloseIdleConnections() {
	if w, ok := b.next.(*http.Transport); ok {
		w.CloseIdleConnections()
	}
}

// Close ends idle connections.
func (c *Client) Close() { c.api.CloneConfig().HttpClient.CloseIdleConnections() }

// Answer of a server. Data is never nil.
type Answer struct {
	Data map[string]any
	// Login is set where the answer is a token.
	Login Login
	// Lease of what was issued; empty: it has none.
	Lease string
	// LeaseTTL is how long it lives.
	LeaseTTL time.Duration
	// Request is the server's id of what was asked, which its audit has too.
	Request string
}

// Login is a token and what the server says of it.
type Login struct {
	Token     secret.Value
	Accessor  string
	Entity    string
	Policies  []string
	TTL       time.Duration // zero: it does not end
	Renewable bool
}

// Read a path. What is not there is of kind Absent.
func (c *Client) Read(ctx context.Context, as secret.Value, path string) (Answer, error) {
	return c.ask(ctx, "read", path, func(ctx context.Context) (*api.Response, error) {
		return c.as(as).ReadRawWithDataWithContext(ctx, path, nil)
	})
}

// List the names below a path, folders with a slash at their end. Nothing there is
// an empty list.
func (c *Client) List(ctx context.Context, as secret.Value, path string) ([]string, error) {
	a, err := c.ask(ctx, "list", path, func(ctx context.Context) (*api.Response, error) {
		return c.as(as).ReadRawWithDataWithContext(ctx, path, map[string][]string{"list": {"true"}})
	})
	if KindOf(err) == Absent {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, ok := a.Data["keys"].([]any); !ok {
		return nil, c.Strange("list", path)
	}
	return Texts(a.Data["keys"]), nil
}

// Write to a path, which is how these servers are asked for everything but reading.
func (c *Client) Write(ctx context.Context, as secret.Value, path string, body map[string]any) (Answer, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return Answer{}, err
	}
	return c.ask(ctx, "write", path, func(ctx context.Context) (*api.Response, error) {
		return c.as(as).WriteRawWithContext(ctx, path, raw)
	})
}

// Delete what is at a path. What is not there is deleted.
func (c *Client) Delete(ctx context.Context, as secret.Value, path string) error {
	_, err := c.ask(ctx, "delete", path, func(ctx context.Context) (*api.Response, error) {
		return c.as(as).DeleteRawWithContext(ctx, path)
	})
	if KindOf(err) == Absent {
		return nil
	}
	return err
}

// as is the library's client with one token, for one request.
func (c *Client) as(token secret.Value) *api.Logical {
	return c.api.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = token.Reveal() }).Logical()
}

// ask runs one request within its time and classifies what went wrong.
func (c *Client) ask(ctx context.Context, verb, path string, run func(context.Context) (*api.Response, error)) (Answer, error) {
	bound, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := run(bound)
	s, err := open(path, resp, err)
	if err != nil {
		if ctx.Err() != nil {
			return Answer{}, context.Cause(ctx)
		}
		return Answer{}, classify(c.Address(), verb, path, err)
	}
	out := Answer{Data: map[string]any{}}
	if s == nil {
		return out, nil
	}
	out.Request, out.Lease, out.LeaseTTL = s.RequestID, s.LeaseID, time.Duration(s.LeaseDuration)*time.Second
	if s.Data != nil {
		out.Data = s.Data
	}
	if s.Auth != nil {
		if out.Login, err = login(s.Auth); err != nil {
			return Answer{}, err
		}
	}
	return out, nil
}

func login(a *api.SecretAuth) (Login, error) {
	var token secret.Value
	// Who renews by an accessor is told of the token's new time, and not the token.
	if a.ClientToken != "" || a.Accessor == "" {
		var err error
		if token, err = secret.New(a.ClientToken); err != nil {
			return Login{}, protocol.Errorf(protocol.CodeInternal, "the server answered with a token that cannot be used: %w", err)
		}
	}
	return Login{
		Token: token, Accessor: a.Accessor, Entity: a.EntityID, Policies: a.Policies,
		TTL: time.Duration(a.LeaseDuration) * time.Second, Renewable: a.Renewable,
	}, nil
}

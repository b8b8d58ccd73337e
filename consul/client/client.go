package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

const (
	// MaxAnswer bounds what a server may answer.
	MaxAnswer = 8 << 20
	// DefaultTimeout of one request, beside the time that it may be held. A server that has
	// lost its leader waits for a new one for 7 s before it says so.
	DefaultTimeout = 10 * time.Second
	// dialTimeout of a connection, and of its handshake.
	dialTimeout = 5 * time.Second
	// silence over a connection after which it is tried, and then given up.
	silence = 2 * time.Second
)

// Config of a connection.
type Config struct {
	// Address as CheckAddress returned it.
	Address string
	// CAFile holds certificates (PEM) to trust instead of the machine's.
	CAFile string
	// ServerName in the server's certificate, where it is not the address'.
	ServerName string
	// CertFile and KeyFile are shown to the server where both are named. They are read
	// for every connection: renewed files need no restart.
	CertFile, KeyFile string
	// Token for a request; nil: none goes along. It is asked for every one.
	Token func() (secret.Value, error)
	// Timeout of one request; zero: DefaultTimeout.
	Timeout time.Duration
}

// Client of one server or agent. It is safe for concurrent use.
type Client struct {
	api     *api.Client
	wire    *http.Transport
	cfg     Config
	timeout time.Duration
}

// New checks the configuration. It asks nothing.
func New(c Config) (*Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
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
	wire := &http.Transport{
		DialContext:     (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig: trust, ForceAttemptHTTP2: true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence},
		TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
	}
	out := &Client{wire: wire, cfg: c, timeout: c.Timeout}
	if out.timeout == 0 {
		out.timeout = DefaultTimeout
	}
	// The library reads the environment: what it finds there is put in its place by
	// carrier, and no token of the environment is ever its own.
	a, err := api.NewClient(&api.Config{Address: c.Address, Token: "in its file", Namespace: "", HttpClient: &http.Client{
		Transport:     carrier{next: wire, token: c.Token},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the connection to %s cannot be set up: %w", c.Address, err)
	}
	out.api = a
	return out, nil
}

// Address of the server.
func (c *Client) Address() string { return c.cfg.Address }

// Close ends idle connections.
func (c *Client) Close() { c.wire.CloseIdleConnections() }

// TokenFile reads a token from a file of one line, which belongs to one user alone.
func TokenFile(path string) func() (secret.Value, error) {
	return func() (secret.Value, error) {
		if err := filemode.Secret(path); err != nil {
			return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "token_file: %w", err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "token_file: %w", err)
		}
		v, err := Token(string(b))
		if err != nil {
			return v, protocol.Errorf(protocol.CodeFailedPrecondition, "token_file: %s does not hold a token: %w", path, err)
		}
		return v, nil
	}
}

// Token of a text.
func Token(text string) (secret.Value, error) {
	text = strings.TrimSpace(text)
	if strings.ContainsAny(text, " \t\r\n") {
		return secret.Value{}, protocol.Errorf(protocol.CodeInvalidArgument, "it has more than one word")
	}
	return secret.New(text)
}

// Match asks which intentions are about a destination, in Consul's order. With an index
// of an earlier answer the server holds the question until something changed, or for
// wait. The answer is of the leader, after it has made sure that it is the leader.
func (c *Client) Match(ctx context.Context, destination string, index uint64, wait time.Duration) (Answer, error) {
	hold := time.Duration(0)
	if index > 0 {
		hold = wait + wait/16 // Consul adds up to as much
	}
	what := "match intentions of " + destination
	a, err := c.ask(ctx, what, hold, func(q *api.QueryOptions) error {
		q.RequireConsistent, q.WaitIndex = true, index
		if index > 0 {
			q.WaitTime = wait
		}
		_, _, err := c.api.Connect().IntentionMatch(&api.IntentionMatch{By: api.IntentionMatchDestination, Names: []string{destination}}, q)
		return err
	})
	if err == nil && !a.led {
		return Answer{}, c.fault(&Fault{Kind: Strange, Asked: what, Said: "the answer does not say that a leader is known"})
	}
	return a, err
}

// Check asks Consul for its own verdict about a pair. It counts L7 as denied.
func (c *Client) Check(ctx context.Context, source, destination string) (allowed bool, err error) {
	_, err = c.ask(ctx, "check intention "+source+" => "+destination, 0, func(q *api.QueryOptions) error {
		allowed, _, err = c.api.Connect().IntentionCheck(&api.IntentionCheck{Source: source, Destination: destination}, q)
		return err
	})
	return allowed, err
}

// Get reads a path into out. What is not there is of kind Absent.
func (c *Client) Get(ctx context.Context, path string, out any) (Answer, error) {
	return c.ask(ctx, "read "+path, 0, func(q *api.QueryOptions) error {
		_, err := c.api.Raw().Query("/v1/"+path, out, q)
		return err
	})
}

// Held reads a path into out. With an index of an earlier answer the server, or the agent,
// holds the question until something changed, or for wait.
func (c *Client) Held(ctx context.Context, path string, index uint64, wait time.Duration, out any) (Answer, error) {
	hold := time.Duration(0)
	if index > 0 {
		hold = wait + wait/16
	}
	return c.ask(ctx, "read "+path, hold, func(q *api.QueryOptions) error {
		if q.WaitIndex = index; index > 0 {
			q.WaitTime = wait
		}
		_, err := c.api.Raw().Query("/v1/"+path, out, q)
		return err
	})
}

// Put writes to a path. cas, where it is not nil, is the ModifyIndex that must still be;
// zero: nothing may be there.
func (c *Client) Put(ctx context.Context, path string, cas *uint64, body any) error {
	written := true
	_, err := c.ask(ctx, "write "+path, 0, func(q *api.QueryOptions) error {
		ex := exchangeOf(q.Context())
		ex.cas = cas
		var err error
		if cas == nil {
			_, err = c.api.Raw().Write("/v1/"+path, body, nil, (&api.WriteOptions{}).WithContext(q.Context()))
		} else {
			_, err = c.api.Raw().Write("/v1/"+path, body, &written, (&api.WriteOptions{}).WithContext(q.Context()))
		}
		return err
	})
	if err == nil && !written {
		return c.fault(&Fault{Kind: Changed, Asked: "write " + path})
	}
	return err
}

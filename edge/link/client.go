package link

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// Config of a Client.
type Config struct {
	// Address of the peer, host:port, the same for UDP and TCP.
	Address string
	Trust   Trust
	// Certificate is asked at every handshake, so that a renewed one serves
	// without a restart. Nil sends none.
	Certificate func() (*tls.Certificate, error)
	Network     Network
	// HeadStart of QUIC over TCP. Default 200 ms.
	HeadStart time.Duration
	// DialTimeout bounds one race. Default 10 s.
	DialTimeout time.Duration
}

// Client is an http.RoundTripper and a connect.HTTPClient over one connection,
// which is dialled when first needed and again when it died.
type Client struct {
	cfg Config

	mu      sync.Mutex // guards the fields below; never held over I/O
	current *conn
	flight  *flight
	closed  bool
	probe   probe
}

// flight is a dial in progress, shared by all who wait for it.
type flight struct {
	ctx  context.Context
	done chan struct{}
	err  error
}

// NewClient checks cfg and dials nothing.
func NewClient(cfg Config) (*Client, error) {
	if err := cfg.Trust.validate(); err != nil {
		return nil, err
	}
	if cfg.Address == "" {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "link: the peer's address is missing")
	}
	cfg.Network = cfg.Network.withDefaults()
	if cfg.HeadStart == 0 {
		cfg.HeadStart = 200 * time.Millisecond
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	return &Client{cfg: cfg}, nil
}

// Dial is NewClient and a first connection.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	c, err := NewClient(cfg)
	if err != nil {
		return nil, err
	}
	return c, c.Connect(ctx)
}

// URL is the base address for generated clients.
func (c *Client) URL() string { return "https://" + c.cfg.Address }

// Connect makes sure that there is a live connection.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.connected(ctx)
	return err
}

// Transport of the live connection, "http/3" or "http/2"; empty without one.
func (c *Client) Transport() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !c.current.alive() {
		return ""
	}
	return c.current.transport
}

// RoundTrip sends one request. It never sends it twice.
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		conn, err := c.connected(req.Context())
		if err != nil {
			if req.Body != nil {
				req.Body.Close()
			}
			return nil, err
		}
		if conn.begin() {
			return conn.do(req)
		}
	}
}

// Do is RoundTrip under the name that Connect asks for. Redirects are never
// followed.
func (c *Client) Do(req *http.Request) (*http.Response, error) { return c.RoundTrip(req) }

// Drop closes the connection; the next request dials. Use it when the path is
// known to be stale: after sleep, or when a peer stopped answering.
func (c *Client) Drop() {
	if conn := c.swap(nil); conn != nil {
		conn.close()
	}
}

// Redial connects anew, with the certificate of now, moves new requests over
// and lets running ones finish on the old connection.
func (c *Client) Redial(ctx context.Context) error {
	conn, err := c.race(ctx)
	if err != nil {
		return err
	}
	return c.install(conn)
}

// Close ends the connection and all its requests.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.Drop()
	return nil
}

func (c *Client) swap(next *conn) (old *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, c.current = c.current, next
	return old
}

// install makes conn the current one, unless the client was closed meanwhile.
func (c *Client) install(conn *conn) error {
	c.mu.Lock()
	closed, old := c.closed, c.current
	if !closed {
		c.current = conn
	}
	c.mu.Unlock()
	if closed {
		conn.close()
		return errClosed()
	}
	if old != nil {
		old.retire()
	}
	return nil
}

// connected returns the live connection, dialling at most once for all callers.
func (c *Client) connected(ctx context.Context) (*conn, error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return nil, errClosed()
		case c.current != nil && c.current.alive():
			defer c.mu.Unlock()
			return c.current, nil
		case c.flight != nil:
			f := c.flight
			c.mu.Unlock()
			select {
			case <-f.done:
				// A dial that ended with its own caller says nothing to this one.
				if f.err != nil && f.ctx.Err() == nil {
					return nil, f.err
				}
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		default:
			f := &flight{ctx: ctx, done: make(chan struct{})}
			c.flight = f
			c.mu.Unlock()
			conn, err := c.race(ctx)
			if err == nil {
				err = c.install(conn)
			}
			c.mu.Lock()
			f.err, c.flight = err, nil
			c.mu.Unlock()
			close(f.done)
			if err != nil {
				return nil, err
			}
		}
	}
}

func errClosed() error {
	return protocol.Errorf(protocol.CodeCancelled, "the link is closed")
}

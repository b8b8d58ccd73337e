package link

import (
	"context"
	"crypto/tls"
	"errors"
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
	// Vouch asks for a second proof of both sides, before a connection carries anything
	// else; nil: for none. RunVouch keeps it.
	Vouch   Vouch
	Network Network
	// HeadStart of QUIC over TCP. Default 200 ms.
	HeadStart time.Duration
	// DialTimeout bounds one race. Default 10 s.
	DialTimeout time.Duration
}

// Client is an http.RoundTripper and a connect.HTTPClient over one connection,
// which is dialled when first needed and again when it died.
type Client struct {
	cfg     Config
	traffic *Meter

	mu      sync.Mutex // guards the fields below; never held over I/O
	current *conn
	flight  *flight
	closed  bool
	probe   probe
}

// flight is a dial in progress, shared by all who wait for it.
type flight struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

// again reports a dial whose end says nothing to who waited for it: it ended
// with its own caller, or was broken off by Drop.
func (f *flight) again() bool { return f.ctx.Err() != nil }

// errDropped breaks off a dial over a path that is known to be stale.
var errDropped = protocol.Errorf(protocol.CodeUnavailable, "the dial was begun anew")

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
	return &Client{cfg: cfg, traffic: NewMeter()}, nil
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
	resp, err := c.once(req)
	if !unsent(err) {
		return resp, err
	}
	next, ok := afresh(req)
	if !ok {
		return nil, err
	}
	return c.once(next)
}

func (c *Client) once(req *http.Request) (*http.Response, error) {
	conn, err := c.reserve(req.Context())
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	return conn.do(req, c.traffic.open(kindOf(req.URL.Path)))
}

// afresh is a request of which nothing was sent, with its body from the start; false
// where that cannot be had, or the request is bound to one connection.
func afresh(req *http.Request) (*http.Request, bool) {
	if _, bound := req.Context().Value(overKey{}).(*conn); bound {
		return nil, false
	}
	if req.Body == nil || req.Body == http.NoBody {
		return req, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	next := *req
	next.Body = body
	return &next, true
}

// reserve returns the connection for one more request: the live one, or the one
// that the context is bound to.
func (c *Client) reserve(ctx context.Context) (*conn, error) {
	if bound, ok := ctx.Value(overKey{}).(*conn); ok {
		if !bound.begin() {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "the connection to %s ended", c.cfg.Address)
		}
		return bound, nil
	}
	for {
		conn, err := c.connected(ctx)
		if err != nil {
			return nil, err
		}
		if conn.begin() {
			return conn, nil
		}
	}
}

// Do is RoundTrip under the name that Connect asks for. Redirects are never
// followed.
func (c *Client) Do(req *http.Request) (*http.Response, error) { return c.RoundTrip(req) }

// Drop closes the connection and breaks off a dial that is under way; the next
// request dials anew. Use it when the path is known to be stale: after sleep, or
// when a peer stopped answering.
func (c *Client) Drop() {
	c.mu.Lock()
	f := c.flight
	c.mu.Unlock()
	if f != nil {
		f.cancel(errDropped)
	}
	if conn := c.swap(nil); conn != nil {
		conn.close()
	}
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
				if f.err != nil && !f.again() {
					return nil, f.err
				}
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		default:
			f := &flight{done: make(chan struct{})}
			f.ctx, f.cancel = context.WithCancelCause(ctx)
			c.flight = f
			c.mu.Unlock()
			err := c.fly(f)
			if err != nil && (ctx.Err() != nil || !errors.Is(err, errDropped)) {
				return nil, err
			}
		}
	}
}

// fly makes one dial for all who wait for it.
func (c *Client) fly(f *flight) error {
	conn, err := c.proven(f.ctx)
	if err == nil {
		err = c.install(conn)
	}
	c.mu.Lock()
	f.err, c.flight = err, nil
	c.mu.Unlock()
	close(f.done)
	f.cancel(nil)
	return err
}

// proven is a new connection whose both sides are who they must be.
func (c *Client) proven(ctx context.Context) (*conn, error) {
	conn, err := c.race(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.prove(ctx, conn); err != nil {
		conn.close()
		var e *protocol.Error
		if errors.As(err, &e) && e.Code == protocol.CodeUnavailable && ctx.Err() == nil {
			e.Detail = protocol.DetailUnreachable // nothing else was sent
		}
		return nil, err
	}
	return conn, nil
}

func errClosed() error {
	return protocol.Errorf(protocol.CodeCancelled, "the link is closed")
}

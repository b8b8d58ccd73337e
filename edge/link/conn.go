package link

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go/http3"
)

// Names of the transports as Transport reports them.
const (
	HTTP3 = "http/3"
	HTTP2 = "http/2"
)

// conn is one connection of either transport. Retired, it takes no new request
// and closes itself when the last one ends.
type conn struct {
	transport string
	remote    string
	roundTrip func(*http.Request) (*http.Response, error)
	// h3 is nil over TCP.
	h3   *http3.ClientConn
	dead func() bool
	shut func()
	// state of the handshake; nil over TCP, where an answer has it.
	state func() *tls.ConnectionState
	// vouched is the newest second proof of the other side; nil: none is asked for.
	vouched atomic.Pointer[Vouched]

	mu       sync.Mutex // guards the fields below
	requests int
	retired  bool
	closed   bool
}

// begin reserves the connection for one request.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired || c.closed {
		return false
	}
	c.requests++
	return true
}

func (c *conn) end() {
	c.mu.Lock()
	c.requests--
	last := c.retired && c.requests == 0
	c.mu.Unlock()
	if last {
		c.close()
	}
}

// retire lets running requests finish.
func (c *conn) retire() {
	c.mu.Lock()
	c.retired = true
	idle := c.requests == 0
	c.mu.Unlock()
	if idle {
		c.close()
	}
}

func (c *conn) close() {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if !again {
		c.shut()
	}
}

func (c *conn) alive() bool {
	c.mu.Lock()
	usable := !c.retired && !c.closed
	c.mu.Unlock()
	return usable && !c.dead() && c.holds()
}

// do runs one reserved request; it ends when the response body is closed.
func (c *conn) do(req *http.Request, count *metered) (*http.Response, error) {
	sent := *req // a RoundTripper leaves the caller's request alone
	sent.Body = body(req.Body, &count.out)
	end := func() {
		count.close()
		c.end()
	}
	resp, err := c.roundTrip(&sent)
	if err != nil {
		if unsent(err) {
			c.retire() // its server takes nothing new over it
		}
		end()
		return nil, err
	}
	resp.Body = &lastBody{ReadCloser: body(resp.Body, &count.in), end: end}
	return resp, nil
}

// unsent reports a request of which no byte left: its connection took no stream for
// it any more, as one that its server shuts down. The type of that error is not
// exported.
func unsent(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "http3: conn unusable: ")
}

// lastBody ends its request when it is closed.
type lastBody struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

func (b *lastBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.end)
	return err
}

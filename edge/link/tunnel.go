package link

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"bivouac/edge/protocol"
)

// Tunnel is a stream of bytes in both directions at once: the bodies of one
// request and of its answer. Client.Tunnel opens one, ServeTunnel answers it.
//
// Read returns io.EOF after the other side's CloseWrite, and an error when the
// other side, its handler or the connection broke off: an end is never mistaken
// for a whole stream. Write and Read may run at the same time, each once.
type Tunnel struct {
	rw         io.ReadWriter
	closeWrite func() error
	finish     func() error // closeWrite of the side that serves
	// abort ends both directions; when all was written, that still arrives.
	abort   func(wroteAll bool)
	count   *metered
	in, out *atomic.Int64
	idle    *idleWatch

	once     sync.Once
	ended    func()
	wroteAll atomic.Bool
	mu       sync.Mutex // guards cause
	cause    error
}

// Read what the other side wrote.
func (t *Tunnel) Read(p []byte) (int, error) {
	n, err := t.rw.Read(p)
	t.in.Add(int64(n))
	t.idle.moved()
	return n, t.because(err)
}

// Write to the other side. It blocks while that does not read.
func (t *Tunnel) Write(p []byte) (int, error) {
	n, err := t.rw.Write(p)
	t.out.Add(int64(n))
	t.idle.moved()
	return n, t.because(err)
}

// CloseWrite says that nothing more comes from this side; reading goes on. The
// side that serves says it by returning.
func (t *Tunnel) CloseWrite() error {
	if err := t.closeWrite(); err != nil {
		return t.because(err)
	}
	t.wroteAll.Store(true)
	return nil
}

// Close ends the tunnel in both directions. Without a CloseWrite before it the
// other side reads an error. It may be called at any time and again.
func (t *Tunnel) Close() error {
	t.end(errTunnelClosed)
	return nil
}

var errTunnelClosed = protocol.Errorf(protocol.CodeCancelled, "the tunnel is closed")

// end ends the tunnel for a reason, which later calls return. The first stays.
func (t *Tunnel) end(why error) {
	t.once.Do(func() {
		t.mu.Lock()
		t.cause = why
		t.mu.Unlock()
		t.idle.stop()
		t.abort(t.wroteAll.Load())
		t.count.close()
		t.ended()
	})
}

// because prefers the reason of our own end to what the transport made of it.
func (t *Tunnel) because(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil {
		return t.cause
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the tunnel broke off: %w", err)
}

// watch ends the tunnel when nothing has moved in either direction for a while.
func (t *Tunnel) watch(after time.Duration) {
	t.idle = newIdleWatch(after)
	t.idle.start(func() {
		t.end(protocol.Errorf(protocol.CodeDeadlineExceeded, "nothing moved in the tunnel for %s", after))
	})
}

// TunnelOptions of one tunnel. The zero value is a tunnel without them.
type TunnelOptions struct {
	// Header goes along with the request: what the handler needs to decide.
	Header http.Header
	// Idle ends a tunnel in which nothing moved for so long; zero never does.
	Idle time.Duration
}

// Tunnel opens a tunnel at the path of a handler of the peer that answers with
// ServeTunnel. It returns when that has accepted; a refusal has the code that the
// handler gave. Close it. It ends with ctx too.
func (c *Client) Tunnel(ctx context.Context, path string, o TunnelOptions) (*Tunnel, error) {
	conn, err := c.reserve(ctx)
	if err != nil {
		return nil, err
	}
	count := c.traffic.open(kindOf(path))
	fail := func(err error) (*Tunnel, error) {
		count.close()
		conn.end()
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL()+path, nil)
	if err != nil {
		cancel(nil)
		return fail(err)
	}
	if o.Header != nil {
		req.Header = o.Header.Clone()
	}
	req.Header.Set("Content-Type", tunnelType)
	open := openTCP
	if conn.h3 != nil {
		open = openQUIC
	}
	t, resp, err := open(conn, req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = refusal(resp)
		t.abort(false)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return fail(err)
	}
	abort := t.abort
	t.abort = func(wroteAll bool) {
		abort(wroteAll)
		cancel(nil)
	}
	t.count, t.in, t.out = count, &count.in, &count.out
	t.ended = conn.end
	t.watch(o.Idle)
	context.AfterFunc(ctx, func() { t.end(context.Cause(ctx)) }) // abort ends the context
	return t, nil
}

// tunnelType tells a tunnel's bodies from those of calls.
const tunnelType = "application/vnd.bivouac.tunnel"

// pipe joins the two bodies.
type pipe struct {
	io.Reader
	io.Writer
}

// openTCP sends the request; its body is what the tunnel writes.
func openTCP(c *conn, req *http.Request) (*Tunnel, *http.Response, error) {
	r, w := io.Pipe()
	req.Body = r
	resp, err := c.roundTrip(req)
	if err != nil {
		w.CloseWithError(err)
		return nil, nil, protocol.Errorf(protocol.CodeUnavailable, "the tunnel cannot be opened: %w", err)
	}
	return &Tunnel{
		rw:         pipe{resp.Body, w},
		closeWrite: w.Close,
		abort: func(bool) {
			w.CloseWithError(errTunnelClosed)
			resp.Body.Close()
		},
	}, resp, nil
}

// openQUIC takes the request's stream itself: no copy stands between.
func openQUIC(c *conn, req *http.Request) (*Tunnel, *http.Response, error) {
	s, err := c.h3.OpenRequestStream(req.Context())
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.CodeUnavailable, "the tunnel cannot be opened: %w", err)
	}
	abort := breakOff(s)
	stop := context.AfterFunc(req.Context(), func() { abort(false) })
	defer stop()
	err = s.SendRequestHeader(req)
	var resp *http.Response
	if err == nil {
		resp, err = s.ReadResponse()
	}
	if err != nil {
		abort(false)
		return nil, nil, protocol.Errorf(protocol.CodeUnavailable, "the tunnel cannot be opened: %w", err)
	}
	return &Tunnel{rw: pipe{s, s}, closeWrite: s.Close, abort: abort}, resp, nil
}

// breakOff is the abort of a QUIC stream.
func breakOff(s interface {
	CancelRead(quic.StreamErrorCode)
	CancelWrite(quic.StreamErrorCode)
}) func(bool) {
	return func(wroteAll bool) {
		if !wroteAll {
			s.CancelWrite(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
		}
		s.CancelRead(quic.StreamErrorCode(http3.ErrCodeNoError))
	}
}

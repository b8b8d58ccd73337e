package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Keep-alive of both transports: a dead peer is noticed within idleTimeout. Who
// dials asks; who listens has been asked a second ago, or notices the silence.
const (
	keepAlive   = time.Second
	idleTimeout = 3 * time.Second
	// headerTimeout bounds the first bytes of a connection that is listened for.
	headerTimeout = 10 * time.Second
	maxStreams    = 1024
	// lastCall is how long the second transport may try when the first failed.
	lastCall = 2 * time.Second
)

// quicConfig asks after keepAlive when ask is set, and else never.
func quicConfig(ask bool) *quic.Config {
	c := &quic.Config{
		HandshakeIdleTimeout: 5 * time.Second,
		// It runs from the keep-alive that got no answer.
		MaxIdleTimeout:     idleTimeout - keepAlive,
		MaxIncomingStreams: maxStreams,
		Allow0RTT:          false,
	}
	if ask {
		c.KeepAlivePeriod = keepAlive
	}
	return c
}

func http2Config(quiet time.Duration) *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: maxStreams,
		SendPingTimeout:      quiet,
		PingTimeout:          idleTimeout - quiet,
	}
}

// race dials QUIC at once and TCP after the head start, or as soon as QUIC
// failed. It returns when both attempts have ended; the loser is closed.
func (c *Client) race(parent context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(parent, c.cfg.DialTimeout)
	defer cancel()
	type outcome struct {
		conn *conn
		err  error
	}
	var (
		wg       sync.WaitGroup
		outcomes = make(chan outcome, 2)
		noQUIC   = make(chan struct{})
		quicErr  error
		tcpErr   error
	)
	wg.Go(func() {
		var conn *conn
		var err error = errShunned
		if !c.shuns() {
			conn, err = c.dialQUIC(ctx)
		}
		if quicErr = err; err != nil {
			close(noQUIC)
		}
		outcomes <- outcome{conn, err}
	})
	wg.Go(func() {
		start := time.NewTimer(c.cfg.HeadStart)
		defer start.Stop()
		select {
		case <-start.C:
		case <-noQUIC:
		case <-ctx.Done():
			tcpErr = context.Cause(ctx)
			outcomes <- outcome{nil, tcpErr}
			return
		}
		conn, err := c.dialTCP(ctx)
		tcpErr = err
		outcomes <- outcome{conn, err}
	})
	var winner *conn
	for range 2 {
		switch o := <-outcomes; {
		case o.err != nil:
			// Where one is refused the other will not answer much later.
			late := time.AfterFunc(c.cfg.HeadStart+lastCall, cancel)
			defer late.Stop()
		case winner == nil:
			winner = o.conn
			cancel()
		default:
			o.conn.close()
		}
	}
	wg.Wait()
	c.remember(winner, quicErr)
	if winner == nil {
		return nil, c.unreachable(parent, quicErr, tcpErr)
	}
	return winner, nil
}

var errShunned = protocol.Errorf(protocol.CodeUnavailable, "QUIC connects and lets nothing through: it is tried again later")

// unreachable picks the error that tells most: a peer that is not the right one
// is final, the rest is a network that may come back.
func (c *Client) unreachable(ctx context.Context, quicErr, tcpErr error) error {
	for _, err := range []error{tcpErr, quicErr} {
		if protocol.CodeOf(err) == protocol.CodeUnauthenticated {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, port, _ := net.SplitHostPort(c.cfg.Address)
	who := "server"
	if c.cfg.Trust.Role == identity.RoleBroker {
		who = "broker"
	}
	return &protocol.Error{Code: protocol.CodeUnavailable, Detail: protocol.DetailUnreachable, Err: tcpErr,
		Message: "cannot reach the " + who + " at " + c.cfg.Address + ": " + cause("TCP", tcpErr) + "; " + cause("UDP", quicErr) +
			"; check that the " + who + " runs there, and that port " + port + " is open for TCP, and for UDP if possible"}
}

// cause says why a transport failed. One that was given up while the other was
// refused, or that ran out of time, got no answer: that its context was cancelled
// is this side's doing.
func cause(transport string, err error) string {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return transport + " got no answer"
	}
	return transport + " failed (" + err.Error() + ")"
}

// tlsConfig is made for each handshake: refusal receives why verify said no,
// since the transports wrap that error beyond recognition.
func (c *Client) tlsConfig(refusal *error) *tls.Config {
	host, _, _ := net.SplitHostPort(c.cfg.Address)
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		// Names are not how peers are known here; verify does the whole work.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			*refusal = c.cfg.Trust.verify(s)
			return *refusal
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c.cfg.Certificate == nil {
				return &tls.Certificate{}, nil
			}
			return c.cfg.Certificate()
		},
	}
}

func (c *Client) dialQUIC(ctx context.Context) (*conn, error) {
	remote, err := c.cfg.Network.ResolveUDP(ctx, c.cfg.Address)
	if err != nil {
		return nil, err
	}
	socket, err := c.cfg.Network.ListenPacket(ctx)
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	shut := sync.OnceFunc(func() {
		transport.Close()
		socket.Close()
	})
	var refusal error
	config := c.tlsConfig(&refusal)
	config.NextProtos = []string{http3.NextProtoH3}
	// Dial, not DialEarly: no request leaves before the peer is proven.
	qc, err := transport.Dial(ctx, remote, config, quicConfig(true))
	if err != nil {
		shut()
		if refusal != nil {
			return nil, refusal
		}
		return nil, err
	}
	// The socket belongs to this connection alone and goes with it, however it ends.
	context.AfterFunc(qc.Context(), shut)
	h := (&http3.Transport{DisableCompression: true}).NewClientConn(qc)
	return &conn{
		transport: HTTP3,
		remote:    remote.String(),
		roundTrip: h.RoundTrip,
		h3:        h,
		state: func() *tls.ConnectionState {
			state := qc.ConnectionState().TLS
			return &state
		},
		dead: func() bool { return qc.Context().Err() != nil },
		shut: func() {
			qc.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
			shut()
		},
	}, nil
}

func (c *Client) dialTCP(ctx context.Context) (*conn, error) {
	var refusal error
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.cfg.Network.DialTCP(ctx, c.cfg.Address)
		},
		TLSClientConfig:    c.tlsConfig(&refusal),
		Protocols:          protocols,
		HTTP2:              http2Config(keepAlive),
		DisableCompression: true,
	}
	cc, err := t.NewClientConn(ctx, "https", c.cfg.Address)
	if err != nil {
		if refusal != nil {
			return nil, refusal
		}
		return nil, err
	}
	return &conn{
		transport: HTTP2,
		remote:    c.cfg.Address,
		roundTrip: cc.RoundTrip,
		dead:      func() bool { return cc.Err() != nil },
		shut:      func() { cc.Close() },
	}, nil
}

package egress

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

const handshakeTimeout = 10 * time.Second

// dialMutual connects with the certificate of the configuration. Who does not ask for
// it would take the request for anybody's: it is not sent then.
func (g *guard) dialMutual(ctx context.Context, _, address string) (net.Conn, error) {
	roots, err := g.cfg.roots()
	if err != nil {
		return nil, &Refused{err}
	}
	raw, err := g.connect(ctx, address)
	if err != nil {
		return nil, &Refused{err}
	}
	asked := false
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: g.cfg.Base.Hostname(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return g.cfg.Certificate, nil
		},
	})
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	switch err := conn.HandshakeContext(ctx); {
	case err != nil:
		raw.Close() // nothing was sent
		return nil, &Refused{protocol.Errorf(protocol.CodeUnavailable, "%s: the TLS handshake with %s fails: %w", g.cfg.Name, address, provable(err))}
	case !asked:
		conn.Close() // nothing was sent
		return nil, &Refused{protocol.Errorf(protocol.CodePolicyDenied, "%s does not ask for a client certificate, so it would not know who asks: nothing was sent", g.cfg.Name)}
	}
	return &mutualConn{Conn: conn, name: g.cfg.Name}, nil
}

// mutualConn tells an end before the request from one after it. With TLS 1.3 a client
// hears only after the handshake that its certificate is refused (RFC 8446, 4.4.2.4):
// whoever broke off before a byte of the request was written has read none, and none is
// written any more. What comes later, whatever it says, proves nothing. INV-5.
type mutualConn struct {
	net.Conn
	name string

	mu      sync.Mutex // guards below
	wrote   bool
	refused error
}

func (c *mutualConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	refused := c.refused
	c.wrote = c.wrote || refused == nil
	c.mu.Unlock()
	if refused != nil {
		return 0, refused
	}
	return c.Conn.Write(b)
}

func (c *mutualConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil || n > 0 {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrote {
		return 0, err
	}
	if c.refused == nil {
		c.refused = &Refused{protocol.Errorf(protocol.CodeUnavailable, "%s ended the connection before it was asked: %w", c.name, err)}
	}
	return 0, c.refused
}

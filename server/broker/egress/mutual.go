package egress

import (
	"context"
	"crypto/tls"
	"net"
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
		return nil, &Refused{protocol.Errorf(protocol.CodeUnavailable, "%s: the TLS handshake with %s fails: %w", g.cfg.Name, address, err)}
	case !asked:
		conn.Close() // nothing was sent
		return nil, &Refused{protocol.Errorf(protocol.CodePolicyDenied, "%s does not ask for a client certificate, so it would not know who asks: nothing was sent", g.cfg.Name)}
	}
	return conn, nil
}

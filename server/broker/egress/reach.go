package egress

import (
	"context"
	"crypto/tls"
	"net"

	"bivouac/edge/protocol"
)

// Dial opens a connection to a destination that speaks no HTTP. An error says that
// there is none.
func Dial(ctx context.Context, cfg Config) (net.Conn, error) {
	g := &guard{cfg: cfg, network: cfg.Network.withDefaults()}
	return g.connect(ctx, HostPort(cfg.Base))
}

// Reach opens a connection to a destination, as a request would, and sends
// nothing over it: name, address class, port and, for https, the certificate
// are what it proves.
func Reach(ctx context.Context, cfg Config) error {
	roots, err := cfg.roots()
	if err != nil {
		return err
	}
	conn, err := Dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	if cfg.Base.Scheme != "https" {
		return nil
	}
	t := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: cfg.Base.Hostname()})
	if err := t.HandshakeContext(ctx); err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "%s: the TLS handshake with %s fails: %w", cfg.Name, HostPort(cfg.Base), provable(err))
	}
	return nil
}

package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// ServerConfig of a Server.
type ServerConfig struct {
	Handler http.Handler
	// Root that proves callers, and that is shown to those who join.
	Root *x509.Certificate
	// Certificate of this side, asked at every handshake; the root is appended.
	Certificate func() (*tls.Certificate, error)
	// Vouch asks callers of the roles VouchFrom for a second proof, beside their
	// certificate; nil: nobody.
	Vouch     Vouch
	VouchFrom []identity.Role
	// ResetKey lets a restarted server tell old QUIC connections at once that
	// they are gone. Keep it over restarts; nil costs clients their idle timeout.
	ResetKey *[32]byte
	// Meter counts streams; nil: one of its own does, by kinds as they come.
	Meter *Meter
	// Grace is how long running requests may go on after Serve's context ends.
	// Default 3 s. Long streams should watch Draining.
	Grace time.Duration
	Log   *slog.Logger
}

// Server answers the same handler over HTTP/3 and HTTP/2.
type Server struct {
	cfg   ServerConfig
	tls   *tls.Config
	drain chan struct{}
}

// NewServer checks cfg and listens nowhere.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Handler == nil || cfg.Root == nil || cfg.Certificate == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "link: handler, root and certificate are needed")
	}
	if cfg.Grace == 0 {
		cfg.Grace = 3 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Meter == nil {
		cfg.Meter = NewMeter()
	}
	s := &Server{cfg: cfg, drain: make(chan struct{})}
	s.tls = &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Callers are judged by authenticate, per connection: crypto/tls can
		// require a chain or ignore it, and enrolment needs both kinds.
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		GetCertificate:         s.certificate,
	}
	return s, nil
}

// certificate appends the root, which joining clients pin by its fingerprint.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, err := s.cfg.Certificate()
	if err != nil {
		return nil, err
	}
	shown := *cert
	shown.Certificate = append(append([][]byte(nil), cert.Certificate...), s.cfg.Root.Raw)
	return &shown, nil
}

type drainKey struct{}

// Draining is closed when the server began to stop: a handler of a long stream
// ends it then, and its client comes back elsewhere.
func Draining(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(drainKey{}).(chan struct{})
	return c
}

// Serve answers until ctx ends, then lets running requests finish for Grace.
// Either of packets and listener may be nil. It closes both. A Server serves once.
func (s *Server) Serve(ctx context.Context, packets net.PacketConn, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := &authenticator{root: s.cfg.Root, vouch: s.cfg.Vouch, from: s.cfg.VouchFrom, next: s.cfg.Meter.Count(s.cfg.Handler)}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		close(s.drain)
		return nil
	})
	if packets != nil {
		g.Go(func() error { return s.serveQUIC(ctx, packets, handler) })
	}
	if listener != nil {
		g.Go(func() error { return s.serveTCP(ctx, listener, handler) })
	}
	return g.Wait()
}

func (s *Server) connContext(ctx context.Context) context.Context {
	return withSeat(context.WithValue(ctx, drainKey{}, s.drain))
}

func (s *Server) serveQUIC(ctx context.Context, packets net.PacketConn, handler http.Handler) error {
	defer packets.Close()
	transport := &quic.Transport{Conn: packets, StatelessResetKey: (*quic.StatelessResetKey)(s.cfg.ResetKey)}
	defer transport.Close()
	config := http3.ConfigureTLSConfig(s.tls)
	listener, err := transport.Listen(config, quicConfig(false))
	if err != nil {
		return err
	}
	server := &http3.Server{
		Handler:     handler,
		ConnContext: func(ctx context.Context, _ *quic.Conn) context.Context { return s.connContext(ctx) },
		Logger:      s.cfg.Log,
	}
	return serveUntil(ctx, s.cfg.Grace,
		func() error { return server.ServeListener(listener) },
		func(grace context.Context) error {
			listener.Close()
			return server.Shutdown(grace)
		},
		server.Close)
}

func (s *Server) serveTCP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         s.tls.Clone(),
		Protocols:         protocols,
		HTTP2:             http2Config(2 * keepAlive),
		ReadHeaderTimeout: headerTimeout,
		ConnContext:       func(ctx context.Context, _ net.Conn) context.Context { return s.connContext(ctx) },
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	return serveUntil(ctx, s.cfg.Grace,
		func() error { return server.ServeTLS(listener, "", "") },
		server.Shutdown, server.Close)
}

// serveUntil runs serve; when ctx ends it shuts down gracefully, then hard.
func serveUntil(ctx context.Context, grace time.Duration, serve func() error, shutdown func(context.Context) error, kill func() error) error {
	var g errgroup.Group
	served := make(chan struct{})
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-served:
			return nil
		}
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if shutdown(limit) != nil {
			return kill()
		}
		return nil
	})
	err := serve()
	close(served)
	stopErr := g.Wait()
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return stopErr
	}
	return err
}

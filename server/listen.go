package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/finding"
	"bivouac/edge/metric"
	"bivouac/edge/protocol"
)

// sockets are everything that the server listens on.
type sockets struct {
	public  net.Listener
	runners net.Listener
	packets net.PacketConn
	metrics net.Listener // nil: nobody is shown any
}

// listen opens the sockets that were not given. It comes first, so that a taken
// port is said at once.
func listen(ctx context.Context, c Config) (_ sockets, err error) {
	s := sockets{public: c.PublicListener, runners: c.RunnerListener, packets: c.RunnerPacketConn, metrics: c.MetricsListener}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	var lc net.ListenConfig
	if s.public == nil {
		if s.public, err = lc.Listen(ctx, "tcp", c.PublicAddress); err != nil {
			return s, taken(err, "public API", "--public", c.PublicAddress, "TCP")
		}
	}
	if s.metrics == nil && c.MetricsAddress != "" {
		if s.metrics, err = metric.Listen(ctx, c.MetricsAddress, "--metrics"); err != nil {
			return s, err
		}
	}
	if s.runners != nil || s.packets != nil {
		return s, nil // a test chose which of the two there are
	}
	if s.runners, err = lc.Listen(ctx, "tcp", c.RunnerAddress); err != nil {
		return s, taken(err, "runner listener", "--runners", c.RunnerAddress, "TCP")
	}
	// The same port for both, also when the system chose it.
	if s.packets, err = lc.ListenPacket(ctx, "udp", s.runners.Addr().String()); err != nil {
		return s, taken(err, "runner listener", "--runners", c.RunnerAddress, "UDP")
	}
	return s, nil
}

func (s sockets) close() {
	if s.public != nil {
		s.public.Close() // going
	}
	if s.runners != nil {
		s.runners.Close() // going
	}
	if s.packets != nil {
		s.packets.Close() // going
		if s.metrics != nil {
			s.metrics.Close()
		}
	}
}

// taken says which port is in the way and what to do about it.
func taken(err error, what, flag, address, transport string) error {
	_, port, _ := net.SplitHostPort(address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the %s cannot listen on %s: port %s (%s) is in use: see by which program with `%s` and stop it (another bivouac-server may run here), or choose another port with %s",
			what, address, port, transport, finding.PortHolder(address), flag)
	}
	if errors.Is(err, syscall.EACCES) {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the %s may not listen on %s: ports below 1024 need a privilege; choose another port with %s", what, address, flag)
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the %s cannot listen on %s: %w; choose another address with %s", what, address, err, flag)
}

// publicServer answers HTTP/1.1 and HTTP/2; in the clear on loopback, HTTP/2
// with prior knowledge.
type publicServer struct {
	listener net.Listener
	handler  http.Handler
	tls      *tls.Config
	grace    time.Duration
	log      *slog.Logger
}

func (p publicServer) run(ctx context.Context) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(p.tls != nil)
	protocols.SetUnencryptedHTTP2(p.tls == nil)
	server := &http.Server{
		Handler:           p.handler,
		Protocols:         protocols,
		TLSConfig:         p.tls,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error {
		if p.tls != nil {
			return server.ServeTLS(p.listener, "", "")
		}
		return server.Serve(p.listener)
	})
	g.Go(func() error {
		<-serving.Done()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.grace)
		defer cancel()
		if server.Shutdown(limit) != nil {
			return server.Close() // whoever is still there comes back
		}
		return nil
	})
	if err := g.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// loadTLS reads the public certificate; nil without one.
func loadTLS(c Config) (*tls.Config, error) {
	if c.TLSCertFile == "" {
		return nil, nil
	}
	host := hostOf(c.PublicAddress)
	cert, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "certificate %s and key %s of the API cannot be used: %w; name two files that belong together with --tls-cert and --tls-key (or public.tls_cert and public.tls_key), or make two: %s",
			c.TLSCertFile, c.TLSKeyFile, err, finding.SelfSigned(host))
	}
	if leaf := cert.Leaf; len(leaf.DNSNames)+len(leaf.IPAddresses) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "certificate %s of the API is for no name and no address (it has no subjectAltName), so nobody who calls believes it: make one that is, %s",
			c.TLSCertFile, finding.SelfSigned(host))
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}, nil
}

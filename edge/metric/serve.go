package metric

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
)

// Path of the page.
const Path = "/metrics"

// Handler answers GET of Path, and nothing else.
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(p.reg, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: 2 * readTimeout,
	}))
	return mux
}

// Listen opens the address of a page. setting is what names it, for the remedy.
func Listen(ctx context.Context, address, setting string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the page of numbers cannot listen on %s: the port is in use; choose another with %s", address, setting)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the page of numbers cannot listen on %s: %w; choose another address with %s", address, err, setting)
	}
	return l, nil
}

// Serve shows the page on l until ctx ends; it closes l.
func (p *Page) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: p.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(l) })
	g.Go(func() error {
		<-serving.Done()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(limit) != nil {
			return server.Close()
		}
		return nil
	})
	if err := g.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

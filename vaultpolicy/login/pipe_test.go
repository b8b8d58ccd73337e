package login

import (
	"context"
	"net"
	"net/http"
	"testing"
)

// pipes is a listener without a network, for virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func pipeDial(t *testing.T, h http.Handler) func(context.Context, string, string) (net.Conn, error) {
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(p) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		mine, its := net.Pipe()
		select {
		case p.conns <- its:
			return mine, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

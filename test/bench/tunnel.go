//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
)

// tunnelChunk is what one write carries, on each of the compared ways.
const tunnelChunk = 128 << 10

// tunnelFigures compares a tunnel with TLS over TCP between the same two ends, in
// turns, so that a busy machine disturbs all of them alike: on this host, and over
// a link shaped to 200 Mbit/s.
func tunnelFigures(ctx context.Context, rounds int) error {
	here, err := newTunnelRig(ctx, hostPath())
	if err != nil {
		return err
	}
	host, err := here.compare(ctx, rounds, 512<<20)
	here.stop()
	if err != nil {
		return err
	}
	report("tunnel_http2_on_one_host_vs_tls", host.http2/host.tls, "ratio", 0.8, true)
	fmt.Printf("bench name=tunnel_quic_on_one_host_vs_tls value=%.4g unit=ratio (tls %.0f, http/2 %.0f, quic %.0f MB/s)\n",
		host.quic/host.tls, host.tls, host.http2, host.quic)

	path, remove, err := shapedPath("200mbit")
	if err != nil {
		fmt.Println("bench name=tunnel_shaped_vs_tls SKIPPED LOUDLY:", err)
		return nil
	}
	defer remove()
	there, err := newTunnelRig(ctx, path)
	if err != nil {
		return err
	}
	shaped, err := there.compare(ctx, rounds, 64<<20)
	there.stop()
	if err != nil {
		return err
	}
	report("tunnel_shaped_vs_tls", shaped.quic/shaped.tls, "ratio", 0.95, true)
	fmt.Printf("bench name=tunnel_http2_shaped_vs_tls value=%.4g unit=ratio (tls %.1f, http/2 %.1f, quic %.1f MB/s)\n",
		shaped.http2/shaped.tls, shaped.tls, shaped.http2, shaped.quic)
	return nil
}

// tunnelPath is how the two ends reach each other.
type tunnelPath struct {
	listen  func() (net.Listener, net.PacketConn, error) // one port for both
	plain   func() (net.Listener, error)
	network link.Network
}

// tunnelRig is a server of tunnels, a plain TLS server beside it, and a client of
// each transport.
type tunnelRig struct {
	path      tunnelPath
	root      *identitytest.Root
	tls       string
	h2, h3    *link.Client
	stop      func()
	endpoints errgroup.Group
}

func newTunnelRig(ctx context.Context, p tunnelPath) (*tunnelRig, error) {
	r := &tunnelRig{path: p, root: identitytest.NewRoot()}
	leaf := r.root.Leaf(identity.RoleServer, "rep_1", "")
	listener, packets, err := p.listen()
	if err != nil {
		return nil, err
	}
	plain, err := p.plain()
	if err != nil {
		return nil, err
	}
	s, err := link.NewServer(link.ServerConfig{
		Root: r.root.Certificate, Grace: time.Millisecond,
		Certificate: func() (*tls.Certificate, error) { return leaf, nil },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			link.ServeTunnel(w, req, time.Minute, func(_ context.Context, t *link.Tunnel) error { return sink(t) })
		}),
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r.endpoints.Go(func() error { return s.Serve(ctx, packets, listener) })
	secure := tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS13})
	r.tls = plain.Addr().String()
	r.endpoints.Go(func() error { return serveTLS(secure) })
	cert, _ := r.root.Runner("ten_01jdv3k8x0q6v9w2m4t7y5z1ab")
	cfg := link.Config{
		Address: listener.Addr().String(), Network: p.network,
		Trust:       link.Trust{Role: identity.RoleServer, Root: r.root.Certificate},
		Certificate: func() (*tls.Certificate, error) { return cert, nil },
	}
	if r.h3, err = link.Dial(ctx, cfg); err != nil {
		cancel()
		return nil, err
	}
	cfg.Network.ListenPacket = func(context.Context) (net.PacketConn, error) { return nil, net.ErrClosed }
	if r.h2, err = link.Dial(ctx, cfg); err != nil {
		cancel()
		return nil, err
	}
	r.stop = func() {
		r.h2.Close()
		r.h3.Close()
		secure.Close()
		cancel()
		_ = r.endpoints.Wait() // ended by us
	}
	return r, nil
}

// sink reads all and answers how much it was.
func sink(rw io.ReadWriter) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, rw, make([]byte, tunnelChunk))
	if err != nil {
		return err
	}
	_, err = rw.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	return err
}

func serveTLS(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_ = sink(c) // the client counts
		c.Close()
	}
}

// pour writes size bytes and waits until the other side has all of them; the rate
// is in MB/s.
func pour(rw io.ReadWriter, closeWrite func() error, size int) (float64, error) {
	chunk := make([]byte, tunnelChunk)
	began := time.Now()
	for sent := 0; sent < size; sent += len(chunk) {
		if _, err := rw.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := closeWrite(); err != nil {
		return 0, err
	}
	var got [8]byte
	if _, err := io.ReadFull(rw, got[:]); err != nil {
		return 0, err
	}
	if n := binary.BigEndian.Uint64(got[:]); n != uint64(size) {
		return 0, fmt.Errorf("%d bytes of %d arrived", n, size)
	}
	return float64(size) / 1e6 / time.Since(began).Seconds(), nil
}

func (r *tunnelRig) overTLS(ctx context.Context, size int) (float64, error) {
	raw, err := r.path.network.DialTCP(ctx, r.tls)
	if err != nil {
		return 0, err
	}
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) // a figure, not a secret
	defer c.Close()
	if err := c.HandshakeContext(ctx); err != nil {
		return 0, err
	}
	return pour(c, c.CloseWrite, size)
}

func overTunnel(ctx context.Context, c *link.Client, size int) (float64, error) {
	t, err := c.Tunnel(ctx, "/bench", link.TunnelOptions{})
	if err != nil {
		return 0, err
	}
	defer t.Close()
	return pour(t, t.CloseWrite, size)
}

type tunnelRates struct{ tls, http2, quic float64 }

// compare measures each way in turn and takes the median of each.
func (r *tunnelRig) compare(ctx context.Context, rounds, size int) (out tunnelRates, err error) {
	ways := []struct {
		into *float64
		rate func() (float64, error)
		size int
	}{
		{into: &out.tls, rate: func() (float64, error) { return r.overTLS(ctx, size) }},
		{into: &out.http2, rate: func() (float64, error) { return overTunnel(ctx, r.h2, size) }},
		{into: &out.quic, rate: func() (float64, error) { return overTunnel(ctx, r.h3, size) }},
	}
	rates := make([][]float64, len(ways))
	for round := range rounds + 1 {
		for i, w := range ways {
			rate, err := w.rate()
			if err != nil {
				return out, err
			}
			if round > 0 { // the first warms up
				rates[i] = append(rates[i], rate)
			}
		}
	}
	for i, w := range ways {
		slices.Sort(rates[i])
		*w.into = rates[i][len(rates[i])/2]
	}
	return out, nil
}

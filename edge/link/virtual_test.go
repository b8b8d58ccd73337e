package link_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
)

// virtual is a server and a machine on a simulated network inside a bubble: UDP
// through simnet with 10 ms each way, TCP as an in-memory pipe.
type virtual struct {
	net  *simnet.Simnet
	cut  atomic.Bool // UDP packets vanish
	pipe *pipeListener
	port int
	root *identitytest.Root
}

// cutRouter drops everything while the cable is cut.
type cutRouter struct {
	simnet.Router
	cut *atomic.Bool
}

func (r *cutRouter) SendPacket(p simnet.Packet) error {
	if r.cut.Load() {
		return nil
	}
	return r.Router.SendPacket(p)
}

var serverAddr = &net.UDPAddr{IP: net.ParseIP("10.0.0.1"), Port: 7401}

func newVirtual(t *testing.T) (*virtual, link.Config) {
	t.Helper()
	v := &virtual{root: identitytest.NewRoot(), pipe: newPipeListener(), port: 9000}
	v.net = &simnet.Simnet{Router: &cutRouter{Router: &simnet.PerfectRouter{}, cut: &v.cut}}
	server := v.root.Leaf(identity.RoleServer, "rep_1", "")
	s, err := link.NewServer(link.ServerConfig{
		Handler: http.HandlerFunc(whoCalls), Root: v.root.Certificate,
		Certificate: func() (*tls.Certificate, error) { return server, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	packets := v.endpoint(serverAddr)
	if err := v.net.Start(); err != nil {
		t.Fatal(err)
	}
	g.Go(func() error { return s.Serve(ctx, packets, v.pipe) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
		v.net.Close()
	})
	runner, _ := v.root.Runner(tenant)
	return v, link.Config{
		Address:     serverAddr.String(),
		Trust:       link.Trust{Role: identity.RoleServer, Root: v.root.Certificate},
		Certificate: func() (*tls.Certificate, error) { return runner, nil },
		Network: link.Network{
			ListenPacket: func(context.Context) (net.PacketConn, error) { return v.client(), nil },
			DialTCP:      func(context.Context, string) (net.Conn, error) { return v.pipe.dial() },
		},
	}
}

func (v *virtual) endpoint(addr *net.UDPAddr) net.PacketConn {
	return v.net.NewEndpoint(addr, simnet.NodeBiDiLinkSettings{Latency: 10 * time.Millisecond})
}

// client makes the next local socket; its simulated link starts at once.
func (v *virtual) client() net.PacketConn {
	v.port++
	l := &simnet.Simnet{Router: v.net.Router}
	c := l.NewEndpoint(&net.UDPAddr{IP: net.ParseIP("10.0.0.2"), Port: v.port}, simnet.NodeBiDiLinkSettings{Latency: 10 * time.Millisecond})
	_ = l.Start()
	return &closingConn{PacketConn: c, close: func() { l.Close() }}
}

type closingConn struct {
	net.PacketConn
	close func()
}

func (c *closingConn) Close() error {
	err := c.PacketConn.Close()
	c.close()
	return err
}

// pipeListener is TCP without a kernel.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: serverAddr.IP, Port: serverAddr.Port} }

func (l *pipeListener) dial() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func TestVirtualQUICInOneRoundTripEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cfg := newVirtual(t)
		c := dial(t, cfg)
		start := time.Now()
		if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/3") {
			t.Fatalf("%q %v", body, err)
		}
		// One round trip of 20 ms for the handshake and one for the request.
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("virtual time %v", took)
		}
	})
}

func TestVirtualUDPBlockedGoesOverTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, cfg := newVirtual(t)
		v.cut.Store(true)
		c := dial(t, cfg)
		start := time.Now()
		if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/2") {
			t.Fatalf("%q %v", body, err)
		}
		if took := time.Since(start); took != 200*time.Millisecond {
			t.Errorf("connected after %v, want exactly the head start", took)
		}
		// A reconnect looks for QUIC again.
		v.cut.Store(false)
		c.Drop()
		if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/3") {
			t.Errorf("after the cut healed: %q %v", body, err)
		}
	})
}

func TestVirtualProbesDecay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, cfg := newVirtual(t)
		v.cut.Store(true)
		c := dial(t, cfg)
		if _, err := get(c, "/"); err != nil {
			t.Fatal(err)
		}
		bound := 30 * time.Second
		for range 9 {
			wait, ok := c.NextProbe()
			if !ok || wait < bound*3/4 || wait > bound*5/4 {
				t.Fatalf("next probe in %v (%v), want about %v", wait, ok, bound)
			}
			time.Sleep(wait)
			if moved, err := c.Upgrade(t.Context()); moved || err == nil {
				t.Fatal("moved over a cut cable")
			}
			bound = min(2*bound, time.Hour)
		}
	})
}

// A cable that is cut shows as a dead connection within about ten seconds, and a
// hanging request ends then.
func TestVirtualDeadPeerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, cfg := newVirtual(t)
		c := dial(t, cfg)
		if _, err := get(c, "/"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // idle is not dead
		if c.Transport() != link.HTTP3 {
			t.Fatal("the idle connection died")
		}
		v.cut.Store(true)
		start := time.Now()
		if _, err := get(c, "/stream"); err == nil {
			t.Fatal("a stream ended well over a cut cable")
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

func TestBackoffIsFullJitterAndResets(t *testing.T) {
	high := &link.Backoff{Base: time.Second, Max: 10 * time.Second, Float: func() float64 { return 0.999 }}
	low := &link.Backoff{Base: time.Second, Max: 10 * time.Second, Float: func() float64 { return 0 }}
	for i, bound := range []time.Duration{1, 2, 4, 8, 10, 10} {
		bound *= time.Second
		if got := high.Next(); got >= bound || got < bound*99/100 {
			t.Errorf("wait %d is %v, want just below %v", i, got, bound)
		}
		if got := low.Next(); got != 0 {
			t.Errorf("wait %d is %v, want 0", i, got)
		}
	}
	high.Reset()
	if got := high.Next(); got >= time.Second || high.Failures() != 1 {
		t.Errorf("after a reset: %v, %d failures", got, high.Failures())
	}
}

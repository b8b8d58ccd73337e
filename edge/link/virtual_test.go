package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
)

const serverAddress = "10.0.0.1:7401"

// newVirtual is a server and a machine on a network in virtual time, 10 ms a
// packet.
func newVirtual(t *testing.T) (*linktest.Net, link.Config) {
	t.Helper()
	return newVirtualVouched(t, nil, nil)
}

// newVirtualVouched asks for a second proof of both sides, where there is one.
func newVirtualVouched(t *testing.T, here, there link.Vouch) (*linktest.Net, link.Config) {
	t.Helper()
	n, root := linktest.New(10*time.Millisecond), identitytest.NewRoot()
	server := root.Leaf(identity.RoleServer, "rep_1", "")
	s, err := link.NewServer(link.ServerConfig{
		Handler: http.HandlerFunc(whoCalls), Root: root.Certificate, Vouch: there, VouchFrom: []identity.Role{identity.RoleRunner},
		Certificate: func() (*tls.Certificate, error) { return server, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	packets, listener, err := n.Listen(serverAddress)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
		n.Close()
	})
	runner, _ := root.Runner(tenant)
	return n, link.Config{
		Address:     serverAddress,
		Trust:       link.Trust{Role: identity.RoleServer, Root: root.Certificate},
		Certificate: func() (*tls.Certificate, error) { return runner, nil },
		Network:     n.Network("10.0.0.2"),
		Vouch:       here,
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
		n, cfg := newVirtual(t)
		n.BlockUDP(true)
		c := dial(t, cfg)
		start := time.Now()
		if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/2") {
			t.Fatalf("%q %v", body, err)
		}
		if took := time.Since(start); took != 200*time.Millisecond {
			t.Errorf("connected after %v, want exactly the head start", took)
		}
		// A reconnect looks for QUIC again.
		n.BlockUDP(false)
		c.Drop()
		if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/3") {
			t.Errorf("after the cut healed: %q %v", body, err)
		}
	})
}

func TestVirtualProbesDecay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, cfg := newVirtual(t)
		n.BlockUDP(true)
		c := dial(t, cfg)
		if _, err := get(c, "/"); err != nil {
			t.Fatal(err)
		}
		bound := 10 * time.Second
		for range 11 {
			wait, ok := c.NextProbe()
			if !ok || wait < bound*3/4 || wait > bound*5/4 {
				t.Fatalf("next probe in %v (%v), want about %v", wait, ok, bound)
			}
			time.Sleep(wait)
			if moved, err := c.Upgrade(t.Context(), nil); moved || err == nil {
				t.Fatal("moved over a cut cable")
			}
			bound = min(2*bound, time.Hour)
		}
	})
}

// A cable that is cut shows as a dead connection within about three seconds, and a
// hanging request ends then.
func TestVirtualDeadPeerIsNoticed(t *testing.T) {
	for _, overTCP := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { deadPeer(t, overTCP) })
	}
}

func deadPeer(t *testing.T, overTCP bool) {
	n, cfg := newVirtual(t)
	n.BlockUDP(overTCP)
	c := dial(t, cfg)
	if _, err := get(c, "/"); err != nil {
		t.Fatal(err)
	}
	transport := c.Transport()
	time.Sleep(time.Hour) // idle is not dead
	if c.Transport() != transport || transport == "" {
		t.Fatal("the idle connection died")
	}
	n.Cut(true)
	start := time.Now()
	if _, err := get(c, "/stream"); err == nil {
		t.Fatal("a stream ended well over a cut cable")
	}
	if took := time.Since(start); took > 3100*time.Millisecond {
		t.Errorf("over %s noticed after %v", transport, took)
	}
}

// One host is cut off while another works on; so is one cable between two.
func TestVirtualOneHostIsCutOff(t *testing.T) {
	for _, overTCP := range []bool{false, true} {
		for name, cut := range map[string]func(*linktest.Net, bool){
			"isolated": func(n *linktest.Net, cut bool) { n.Isolate("10.0.0.2", cut) },
			"severed":  func(n *linktest.Net, cut bool) { n.Sever("10.0.0.2", "10.0.0.1", cut) },
		} {
			synctest.Test(t, func(t *testing.T) {
				n, cfg := newVirtual(t)
				n.BlockUDP(overTCP)
				here := dial(t, cfg)
				cfg.Network = n.Network("10.0.0.3")
				there := dial(t, cfg)
				reach := func(c *link.Client) error {
					_, err := get(c, "/")
					return err
				}
				if err := errors.Join(reach(here), reach(there)); err != nil {
					t.Fatal(err)
				}
				cut(n, true)
				if err := reach(here); err == nil {
					t.Errorf("%s: a host that was cut off reached the server", name)
				}
				if err := reach(there); err != nil {
					t.Errorf("%s: another host was cut off too: %v", name, err)
				}
				cut(n, false)
				if err := reach(here); err != nil {
					t.Errorf("%s: after the cable was mended: %v", name, err)
				}
			})
		}
	}
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

// hollow takes a proof that does not hold.
type hollow struct{ *word }

func (h hollow) Check(b link.Binding, shown []byte) (link.Vouched, error) {
	_, err := h.word.Check(b, shown)
	return said{"nobody", time.Now(), h.word}, err
}

// A second proof that is refused at once makes no hot loop: a request is refused with it
// after one connection, and RunVouch shows its own once a second at most. What is good again
// is taken by itself.
func TestVirtualVouchRefusedAtOnce(t *testing.T) {
	for _, overTCP := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			here := hollow{newWord("a", "b")}
			n, cfg := newVirtualVouched(t, here, newWord("b", "a"))
			n.BlockUDP(overTCP)
			c := dial(t, cfg)
			if _, err := get(c, "/"); protocol.CodeOf(err) != protocol.CodeUnavailable || here.shown.Load() != 1 {
				t.Errorf("a proof that does not hold: %v, after %d connections", err, here.shown.Load())
			}
		})
		synctest.Test(t, func(t *testing.T) {
			here, there := newWord("a", "b"), newWord("b", "a")
			n, cfg := newVirtualVouched(t, here, there)
			n.BlockUDP(overTCP)
			c := dial(t, cfg)
			ctx, stop := context.WithCancel(t.Context())
			var g errgroup.Group
			g.Go(func() error { return c.RunVouch(ctx) })
			if _, err := get(c, "/"); err != nil {
				t.Error(err)
			}
			here.set("x", "b") // the other side does not know it
			before := here.shown.Load()
			time.Sleep(time.Minute)
			if n := here.shown.Load() - before; n < 2 || n > 60 {
				t.Errorf("shown %d times in a minute", n)
			}
			here.set("a", "b")
			time.Sleep(time.Second)
			if _, err := get(c, "/"); err != nil {
				t.Errorf("once it is good: %v", err)
			}
			stop()
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

package relay

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// A relay whose network eats UDP works over TCP, and goes back to QUIC between two
// calls once that gets through; a look that fails costs a call half a second at most.
func TestVirtualRelayGoesBackToQUIC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const address = "10.0.0.9:7402"
		n, root := linktest.New(5*time.Millisecond), identitytest.NewRoot()
		defer n.Close()
		leaf := root.Leaf(identity.RoleBroker, "brk_1", "")
		mux := http.NewServeMux()
		mux.Handle(brokerv1connect.NewBrokerServiceHandler(&broker{}))
		s, err := link.NewServer(link.ServerConfig{Handler: mux, Root: root.Certificate, Certificate: func() (*tls.Certificate, error) { return leaf, nil }})
		if err != nil {
			t.Fatal(err)
		}
		packets, listener, err := n.Listen(address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return s.Serve(ctx, packets, listener) })
		defer func() {
			cancel()
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		}()
		cert, _ := root.Runner("ten_01jdv3k8x0q6v9w2m4t7y5z1ab")
		b, hangUp, err := Dial(link.Config{Trust: link.Trust{Role: identity.RoleBroker, Root: root.Certificate},
			Certificate: func() (*tls.Certificate, error) { return cert, nil }, Network: n.Network("10.0.1.1")})(address)
		if err != nil {
			t.Fatal(err)
		}
		defer hangUp()
		clock := lease.NewLease(func() time.Duration { return 0 })
		clock.Renew(0, time.Hour, time.Hour)
		r := New(Config{Broker: b, Lease: clock, Model: "main"})
		r.Refresh("cap-1", Slice{})
		call := func() (took time.Duration) {
			t.Helper()
			start := time.Now()
			if err := r.CallModel(ctx, &runtimev1.ModelRequest{Model: "main"}, func(*runtimev1.ModelResponse) error { return nil }); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		over := func() string { return b.(probing).link.Transport() }
		n.BlockUDP(true)
		call()
		time.Sleep(15 * time.Second)
		if took := call(); over() != link.HTTP2 || took > probeLimit+100*time.Millisecond {
			t.Errorf("a look that fails: over %s after %v", over(), took)
		}
		n.BlockUDP(false)
		if call(); over() != link.HTTP2 {
			t.Error("the next look came at once")
		}
		time.Sleep(time.Minute)
		if call(); over() != link.HTTP3 {
			t.Errorf("the relay stays on %s", over())
		}
	})
}

package feed_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/server/broker/feed"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// server is a small feed over real TLS on pipes.
type server struct {
	brokerv1connect.UnimplementedFeedServiceHandler
	mute  atomic.Bool // says nothing, as a server does that hangs
	peers chan identity.Peer
	asked chan int64
}

func (s *server) Feed(ctx context.Context, r *brokerv1.FeedRequest, out *connect.ServerStream[brokerv1.FeedResponse]) error {
	p, err := link.PeerFrom(ctx)
	if err != nil {
		return err
	}
	s.peers <- p
	s.asked <- r.GetCursor()
	m := &brokerv1.FeedResponse{Snapshot: r.GetCursor() == 0, Cursor: 5}
	for ctx.Err() == nil {
		if !s.mute.Load() {
			m.StoreReadUs = time.Now().UnixMicro()
			if err := out.Send(m); err != nil {
				return err
			}
			m = &brokerv1.FeedResponse{Cursor: 5}
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
	return nil
}

// A follower reconnects from its cursor, also after a silence on a connection
// that looks alive, and the age is exact in virtual time.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := identitytest.NewRoot()
		s := &server{peers: make(chan identity.Peer, 100), asked: make(chan int64, 100)}
		ln := linktest.NewListener()
		_, handler := brokerv1connect.NewFeedServiceHandler(s)
		mux := http.NewServeMux()
		mux.Handle("/", handler)
		serverCert := root.Leaf(identity.RoleServer, "rep_1", "")
		listener, err := link.NewServer(link.ServerConfig{Handler: mux, Root: root.Certificate, Certificate: func() (*tls.Certificate, error) { return serverCert, nil }})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		f := feed.New(root.Key.Public().(ed25519.PublicKey), func() time.Duration { return time.Since(start) }, slog.New(slog.DiscardHandler))
		brokerCert := root.Leaf(identity.RoleBroker, "brk_1", "")
		w, err := feed.Follow(f, feed.Config{
			Addresses: []string{"10.0.0.1:7401"}, Root: root.Certificate, BootNonce: "b", Log: slog.New(slog.DiscardHandler),
			Certificate: func() (*tls.Certificate, error) { return brokerCert, nil },
			Network: link.Network{DialTCP: func(ctx context.Context, _ string) (net.Conn, error) { return ln.Dial(ctx) }, ListenPacket: func(context.Context) (net.PacketConn, error) {
				return nil, errors.New("no UDP here")
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return listener.Serve(ctx, nil, ln) })
		g.Go(func() error { return w.Run(ctx) })

		time.Sleep(time.Second)
		if err := f.Check(600 * time.Millisecond); err != nil {
			t.Errorf("after a second: %v", err)
		}
		if p := <-s.peers; p.Role != identity.RoleBroker || p.ID != "brk_1" || <-s.asked != 0 {
			t.Errorf("the server saw %+v", p)
		}
		s.mute.Store(true)
		time.Sleep(10 * time.Second)
		if age := f.Age(); age < 9*time.Second || age > 11*time.Second {
			t.Errorf("after ten seconds of silence the age is %s", age)
		}
		s.mute.Store(false)
		time.Sleep(5 * time.Second)
		// It may have asked up to a second before the server spoke again, which counts as age.
		if err := f.Check(1500 * time.Millisecond); err != nil {
			t.Errorf("after the silence: %v", err)
		}
		if got := <-s.asked; got != 5 {
			t.Errorf("it came back from cursor %d", got)
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

package feed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// silence is how long a stream may say nothing before it is given up. A
// heartbeat comes every 250 ms.
const silence = 2 * time.Second

// silenceAmong is that of a broker with several servers: it moves on to the next
// one before its knowledge is too old to admit.
const silenceAmong = time.Second

// Config of a Follower.
type Config struct {
	// Addresses of servers' runner listeners; one is followed at a time.
	Addresses   []string
	Root        *x509.Certificate
	Certificate func() (*tls.Certificate, error)
	Network     link.Network
	// Vouch is a second proof of both sides; nil: none is asked for.
	Vouch     link.Vouch
	BootNonce string
	// OnChange is called after every message that changed something.
	OnChange func()
	// Beside runs while a stream is open, with the server that it comes from, and
	// returns when its context ends; nil: nothing does.
	Beside func(context.Context, brokerv1connect.FeedServiceClient)
	Log    *slog.Logger
}

// Follower keeps a Feed current over the network.
type Follower struct {
	cfg     Config
	feed    *Feed
	clients []*link.Client
}

// Follow makes a follower; it dials nothing.
func Follow(f *Feed, cfg Config) (*Follower, error) {
	if len(cfg.Addresses) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the broker needs the address of a server's runner listener")
	}
	w := &Follower{cfg: cfg, feed: f}
	for _, a := range cfg.Addresses {
		c, err := link.NewClient(link.Config{
			Address: a, Trust: link.Trust{Role: identity.RoleServer, Root: cfg.Root}, Certificate: cfg.Certificate, Network: cfg.Network, Vouch: cfg.Vouch,
		})
		if err != nil {
			return nil, err
		}
		w.clients = append(w.clients, c)
	}
	return w, nil
}

// Run follows until ctx ends, one server after the other when one fails.
func (w *Follower) Run(ctx context.Context) error {
	defer func() {
		for _, c := range w.clients {
			c.Close() // nothing to lose
		}
	}()
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range w.clients {
		g.Go(func() error { return c.RunVouch(ctx) })
	}
	g.Go(func() error { return w.follow(ctx) })
	return g.Wait()
}

func (w *Follower) follow(ctx context.Context) error {
	back := link.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}
	for i := 0; ctx.Err() == nil; i++ {
		c := w.clients[i%len(w.clients)]
		good, err := w.stream(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if good {
			back.Reset()
		}
		wait := back.Next()
		w.cfg.Log.Warn("the feed broke off", "server", c.URL(), "error", err, "failures", back.Failures(), "again_in", wait)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

func (w *Follower) silence() time.Duration {
	if len(w.clients) > 1 {
		return silenceAmong
	}
	return silence
}

var errSilent = errors.New("the server is silent")

// stream follows one stream to its end. good says that it made the feed current.
func (w *Follower) stream(ctx context.Context, c *link.Client) (good bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := c.Connect(ctx); err != nil { // bounded by the link itself
		return false, err
	}
	quiet := time.AfterFunc(w.silence(), func() { cancel(errSilent) })
	defer quiet.Stop()
	cursor := w.feed.Begin()
	server := brokerv1connect.NewFeedServiceClient(c, c.URL())
	s, err := server.Feed(ctx, &brokerv1.FeedRequest{
		Cursor: cursor, BootNonce: w.cfg.BootNonce, CapabilityVersion: protocol.Current(),
	})
	if err != nil {
		return false, w.ended(ctx, c, err)
	}
	defer s.Close() // ended with ctx
	defer w.beside(ctx, cancel, server)()
	for s.Receive() {
		quiet.Reset(w.silence())
		changed, err := w.feed.Apply(s.Msg())
		if changed && w.cfg.OnChange != nil {
			w.cfg.OnChange()
		}
		if err != nil {
			return good, err
		}
		good = good || w.feed.Check(silence) == nil
	}
	return good, w.ended(ctx, c, s.Err())
}

// beside starts what runs with the stream; the returned function ends it.
func (w *Follower) beside(ctx context.Context, cancel context.CancelCauseFunc, server brokerv1connect.FeedServiceClient) (end func()) {
	if w.cfg.Beside == nil {
		return func() {}
	}
	var g errgroup.Group
	g.Go(func() error { w.cfg.Beside(ctx, server); return nil })
	return func() {
		cancel(nil)
		g.Wait() // it has no error
	}
}

// ended names the reason. After silence the connection itself is not trusted.
func (w *Follower) ended(ctx context.Context, c *link.Client, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		c.Drop()
		return errSilent
	}
	if err == nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the server ended the feed")
	}
	return protocol.FromConnect(err)
}

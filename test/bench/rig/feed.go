package rig

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/link"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// beat of the feed, as the server's.
const beat = 250 * time.Millisecond

// feed is the server's side: it says what was taken back.
type feed struct {
	brokerv1connect.UnimplementedFeedServiceHandler
	rig     *Rig
	address string

	mu     sync.Mutex // guards below
	floors []*brokerv1.Floor
	wake   chan struct{} // closed and replaced by every floor
}

func (r *Rig) startFeed(ctx context.Context) (*feed, error) {
	f := &feed{rig: r, wake: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(brokerv1connect.NewFeedServiceHandler(f))
	s, err := link.NewServer(link.ServerConfig{Handler: mux, Root: r.keys.Root(), Certificate: func() (*tls.Certificate, error) { return r.server, nil }})
	if err != nil {
		return nil, err
	}
	packets, listener, err := listen()
	if err != nil {
		return nil, err
	}
	f.address = listener.Addr().String()
	r.running.Go(func() error { return s.Serve(ctx, packets, listener) })
	return f, nil
}

// Revoke a session: the instant of the record is returned.
func (r *Rig) Revoke(session string) time.Time {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Now()
	f.floors = append(f.floors, &brokerv1.Floor{Seq: int64(len(f.floors) + 1), Kind: brokerv1.FloorKind_FLOOR_KIND_SESSION, Id: session, Minimum: 1<<63 - 1})
	close(f.wake)
	f.wake = make(chan struct{})
	return at
}

// Feed sends floors as they come, and a beat between them.
func (f *feed) Feed(ctx context.Context, in *brokerv1.FeedRequest, out *connect.ServerStream[brokerv1.FeedResponse]) error {
	statement, _, err := f.rig.keys.CertifyKey(ctx, "rep_1", f.rig.signing.Public())
	if err != nil {
		return err
	}
	cursor, statements, snapshot := int(in.GetCursor()), []string{statement}, in.GetCursor() == 0
	for {
		f.mu.Lock()
		fresh, wake := f.floors[min(cursor, len(f.floors)):], f.wake
		f.mu.Unlock()
		cursor += len(fresh)
		err := out.Send(&brokerv1.FeedResponse{StoreReadUs: time.Now().UnixMicro(), Cursor: int64(cursor), Floors: fresh, Snapshot: snapshot, SigningStatements: statements})
		if err != nil {
			return err
		}
		snapshot, statements = false, nil
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(beat):
		}
	}
}

package brokerlinktest

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// feedState is what the broker learned from the server.
type feedState struct {
	mu         sync.Mutex // guards below
	at         time.Time  // arrival of the newest completed read
	cursor     int64
	floors     map[string]int64
	statements []string
	snapshots  int
}

func (f *feedState) age() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() {
		return -1
	}
	return time.Since(f.at).Milliseconds()
}

func (f *feedState) take(m *brokerv1.FeedResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.GetSnapshot() {
		clear(f.floors)
		f.snapshots++
	}
	for _, fl := range m.GetFloors() {
		f.floors[fl.GetId()] = fl.GetMinimum()
	}
	if m.GetSigningStatements() != nil {
		f.statements = m.GetSigningStatements()
	}
	f.cursor = m.GetCursor()
	if m.GetStoreReadUs() != 0 {
		f.at = time.Now()
	}
}

// FollowFeed dials a server's feed and keeps it until ctx ends, coming back
// with its cursor when it breaks.
func (b *Broker) FollowFeed(ctx context.Context, address string, network link.Network) error {
	conn, err := link.NewClient(link.Config{
		Address: address, Network: network,
		Trust:       link.Trust{Role: identity.RoleServer, Root: b.Root.Cert},
		Certificate: func() (*tls.Certificate, error) { return b.leaf, nil },
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	client := brokerv1connect.NewFeedServiceClient(conn, conn.URL())
	for ctx.Err() == nil {
		stream, err := client.Feed(ctx, &brokerv1.FeedRequest{Cursor: b.Cursor(), BootNonce: b.Boot})
		if err == nil {
			for stream.Receive() {
				b.feed.take(stream.Msg())
			}
			stream.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// Cursor of the newest delta.
func (b *Broker) Cursor() int64 {
	b.feed.mu.Lock()
	defer b.feed.mu.Unlock()
	return b.feed.cursor
}

// Floor of a subject, and whether there is one.
func (b *Broker) Floor(id string) (minimum int64, ok bool) {
	b.feed.mu.Lock()
	defer b.feed.mu.Unlock()
	minimum, ok = b.feed.floors[id]
	return minimum, ok
}

// Learned is what else came: statements, and how many snapshots.
func (b *Broker) Learned() (statements []string, snapshots int) {
	b.feed.mu.Lock()
	defer b.feed.mu.Unlock()
	return b.feed.statements, b.feed.snapshots
}

func textDelta(text string) *brokerv1.CallModelResponse {
	return &brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_TextDelta{TextDelta: text}}}
}

func modelDone(d *runtimev1.ModelDone) *brokerv1.CallModelResponse {
	return &brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_Done{Done: d}}}
}

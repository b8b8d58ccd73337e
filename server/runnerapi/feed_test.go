package runnerapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// words are statements that a test changes.
type words struct {
	mu        sync.Mutex // guards below
	now       []string
	changed   chan struct{}
	delivered []string
}

func (w *words) Statements() ([]string, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}

func (w *words) Delivered(jws []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delivered = append(w.delivered, jws...)
}

func (w *words) say(jws ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = jws
	close(w.changed)
	w.changed = make(chan struct{})
}

// feedOf serves a feed over a store with n floors.
func feedOf(t *testing.T, n int) (*Feed, *words, *store.Store, brokerv1connect.FeedServiceClient) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	addFloors(t, s, 0, n)
	w := &words{changed: make(chan struct{}), now: []string{"statement-1"}}
	f := NewFeed(s, w, slog.New(slog.DiscardHandler))
	h := Handler(Config{Store: s, Feed: f})
	ts := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(rw, r.WithContext(link.WithPeer(r.Context(), identity.Peer{Role: identity.RoleBroker, ID: "brk"})))
	}))
	t.Cleanup(ts.Close)
	t.Cleanup(ts.CloseClientConnections)
	return f, w, s, brokerv1connect.NewFeedServiceClient(ts.Client(), ts.URL)
}

func addFloors(t *testing.T, s *store.Store, from, n int) {
	t.Helper()
	err := s.Update(t.Context(), store.AsLoop("test"), func(tx *store.Tx) error {
		for i := range n {
			if _, err := tx.AddFloor(policy.Floor{Kind: policy.FloorGrant, ID: fmt.Sprint("grant-", from+i), Minimum: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func listenTo(t *testing.T, c brokerv1connect.FeedServiceClient, cursor int64) func() *brokerv1.FeedResponse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := c.Feed(ctx, &brokerv1.FeedRequest{Cursor: cursor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	return func() *brokerv1.FeedResponse {
		if !stream.Receive() {
			t.Fatalf("the feed ended: %v", stream.Err())
		}
		return stream.Msg()
	}
}

// A snapshot in parts is not fresh before its last part: a broker must not take
// some floors for all of them. INV-13.
func TestSnapshotInParts(t *testing.T) {
	const n = 2*floorPage + 5
	_, _, _, c := feedOf(t, n)
	next := listenTo(t, c, 0)
	got := map[string]bool{}
	for part := range 3 {
		m := next()
		if m.GetSnapshot() != (part == 0) {
			t.Errorf("part %d: snapshot %v", part, m.GetSnapshot())
		}
		if fresh := m.GetStoreReadUs() != 0; fresh != (part == 2) {
			t.Errorf("part %d: fresh %v", part, fresh)
		}
		if part == 0 && len(m.GetSigningStatements()) != 1 {
			t.Errorf("statements %v", m.GetSigningStatements())
		}
		for _, f := range m.GetFloors() {
			got[f.GetId()] = true
		}
	}
	if len(got) != n {
		t.Errorf("%d floors of %d", len(got), n)
	}
}

// Floors come once and in order, whether the feed's memory or the store has them.
func TestDeltasOnceAndInOrder(t *testing.T) {
	f, w, s, c := feedOf(t, 3)
	if err := f.tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := listenTo(t, c, 1)
	first := next()
	if first.GetSnapshot() || len(first.GetFloors()) != 2 || first.GetFloors()[0].GetSeq() != 2 {
		t.Fatalf("resumed with %v", first)
	}
	last := first.GetCursor()
	for round := range 5 {
		addFloors(t, s, 10*round+100, 3)
		if err := f.tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := next()
		if len(m.GetFloors()) != 3 || m.GetFloors()[0].GetSeq() != last+1 || m.GetCursor() != last+3 {
			t.Fatalf("round %d: %v after %d", round, m, last)
		}
		last = m.GetCursor()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.delivered) != 1 || w.delivered[0] != "statement-1" {
		t.Errorf("delivered %v", w.delivered)
	}
}

func TestALateListenerReadsTheStore(t *testing.T) {
	f, _, s, c := feedOf(t, 1)
	if err := f.tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := listenTo(t, c, 1)
	next()
	// More than the feed remembers, between two readings of this listener.
	addFloors(t, s, 10, floorsKept+floorPage)
	if err := f.tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen, last := 0, int64(1)
	for seen < floorsKept+floorPage {
		for _, fl := range next().GetFloors() {
			if fl.GetSeq() != last+1 {
				t.Fatalf("floor %d after %d", fl.GetSeq(), last)
			}
			last = fl.GetSeq()
			seen++
		}
	}
}

func TestNewStatementsGoOutAtOnce(t *testing.T) {
	f, w, _, c := feedOf(t, 0)
	if err := f.tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := listenTo(t, c, 0)
	next()
	w.say("statement-2", "statement-1") // and nothing is read
	if m := next(); len(m.GetSigningStatements()) != 2 || m.GetStoreReadUs() != 0 {
		t.Errorf("got %v", m)
	}
}

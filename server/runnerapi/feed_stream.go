package runnerapi

import (
	"context"
	"slices"

	"connectrpc.com/connect"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// feeds is the FeedService.
type feeds struct{ Config }

// Feed sends a snapshot, or what is new since a cursor, then every floor and
// statement as it comes, and the time of a completed read at least each beat.
// A message that is not the last of a catch-up carries no time: a broker must
// not take a part of the floors for all of them.
func (s feeds) Feed(ctx context.Context, r *brokerv1.FeedRequest, stream *connect.ServerStream[brokerv1.FeedResponse]) error {
	if v := r.GetCapabilityVersion(); v != 0 {
		if _, err := protocol.Agree(v, v); err != nil {
			return err
		}
	}
	l := &listener{feed: s.Config.Feed, store: s.Store, stream: stream}
	if err := l.catchUp(ctx, r.GetCursor()); err != nil {
		return err
	}
	for {
		_, changed := s.Config.Feed.statements.Statements()
		now, next := s.Config.Feed.since(l.cursor)
		if err := l.send(ctx, now); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Stopping:
			return stopping()
		case <-link.Draining(ctx):
			return stopping()
		case <-next:
		case <-changed:
		}
	}
}

// listener is one broker's open feed.
type listener struct {
	feed   *Feed
	store  *store.Store
	stream *connect.ServerStream[brokerv1.FeedResponse]
	cursor int64
	readUs int64    // newest completed read that was sent
	sent   []string // statements of the last message that carried any
	told   bool     // a message went out after that one
}

// catchUp brings a broker to the newest floor. A cursor of zero, or one that
// this store never gave out (a rewound copy), is answered by a snapshot.
func (l *listener) catchUp(ctx context.Context, cursor int64) error {
	var newest int64
	err := l.store.View(ctx, store.AsLoop("feed"), func(tx *store.Tx) (err error) {
		_, newest, err = tx.Floors(cursor, 1)
		return err
	})
	if err != nil {
		return err
	}
	snapshot := cursor <= 0 || cursor > newest
	if snapshot {
		cursor = 0
	}
	l.cursor = cursor
	return l.readStore(ctx, snapshot)
}

// readStore sends every floor after the cursor, page by page.
func (l *listener) readStore(ctx context.Context, snapshot bool) error {
	for {
		var page []policy.Floor
		var newest, at int64
		err := l.store.View(ctx, store.AsLoop("feed"), func(tx *store.Tx) (err error) {
			at = tx.Now.UnixMicro()
			page, newest, err = tx.Floors(l.cursor, floorPage)
			return err
		})
		if err != nil {
			return err
		}
		m := &brokerv1.FeedResponse{Snapshot: snapshot, Floors: floorsOut(page), Cursor: newest, StoreReadUs: at}
		last := len(page) < floorPage
		if !last {
			m.Cursor, m.StoreReadUs = page[len(page)-1].Seq, 0
		}
		if err := l.put(m); err != nil {
			return err
		}
		if last {
			return nil
		}
		snapshot = false
	}
}

// send passes one reading on.
func (l *listener) send(ctx context.Context, r reading) error {
	if r.behind {
		return l.readStore(ctx, false)
	}
	if r.at.UnixMicro() <= l.readUs || r.cursor < l.cursor {
		// Nothing newer was read; a new statement does not wait for that.
		if now, _ := l.feed.statements.Statements(); !slices.Equal(now, l.sent) {
			return l.put(&brokerv1.FeedResponse{Cursor: l.cursor})
		}
		return nil
	}
	return l.put(&brokerv1.FeedResponse{StoreReadUs: r.at.UnixMicro(), Cursor: r.cursor, Floors: floorsOut(r.floors)})
}

// put adds the statements when they are others than the last ones, and reports
// them as delivered once another message went out behind them.
func (l *listener) put(m *brokerv1.FeedResponse) error {
	now, _ := l.feed.statements.Statements()
	if !slices.Equal(now, l.sent) {
		m.SigningStatements = now
	}
	if err := l.stream.Send(m); err != nil {
		return err
	}
	l.cursor, l.readUs = m.GetCursor(), max(l.readUs, m.GetStoreReadUs())
	switch {
	case m.SigningStatements != nil:
		l.sent, l.told = now, false
	case !l.told:
		l.told = true
		l.feed.statements.Delivered(l.sent)
	}
	return nil
}

func floorsOut(list []policy.Floor) []*brokerv1.Floor {
	out := make([]*brokerv1.Floor, 0, len(list))
	for _, f := range list {
		out = append(out, &brokerv1.Floor{Seq: f.Seq, Kind: brokerv1.FloorKind(f.Kind), Id: f.ID, Minimum: f.Minimum})
	}
	return out
}

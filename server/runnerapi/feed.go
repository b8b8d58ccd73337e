package runnerapi

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bivouac/server/policy"
	"bivouac/server/store"
)

// feedBeat is how often the feed reads the store and says so.
const feedBeat = 250 * time.Millisecond

// Bounds of what the feed reads and keeps.
const (
	floorPage   = 1000
	floorsKept  = 4096
	readTimeout = 2 * time.Second
)

// Statements are the root's words over the living signing keys.
type Statements interface {
	// Statements, newest first; changed is closed when there are others.
	Statements() (jws []string, changed <-chan struct{})
	// Delivered says that a broker had them.
	Delivered(jws []string)
}

// Feed reads the store for all brokers at once: one transaction each beat and
// after each new floor, however many listen.
type Feed struct {
	store      *store.Store
	statements Statements
	log        *slog.Logger

	mu      sync.Mutex // guards below
	readAt  time.Time  // start of the last completed read
	cursor  int64      // newest floor at that read
	base    int64      // floors after base and up to cursor are in recent
	recent  []policy.Floor
	updated chan struct{} // closed and replaced at each completed read
}

// NewFeed starts nothing.
func NewFeed(s *store.Store, st Statements, log *slog.Logger) *Feed {
	return &Feed{store: s, statements: st, log: log, updated: make(chan struct{})}
}

// Run reads until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	wake, stop := f.store.Subscribe(store.TopicFloors)
	defer stop()
	beat := time.NewTicker(feedBeat)
	defer beat.Stop()
	for {
		if err := f.tick(ctx); err != nil && ctx.Err() == nil {
			// Brokers see the silence and stop admitting: that is the point.
			f.log.ErrorContext(ctx, "the feed could not read the store", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-beat.C:
		}
	}
}

// tick makes one read and publishes it.
func (f *Feed) tick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	f.mu.Lock()
	from, first := f.cursor, f.readAt.IsZero()
	f.mu.Unlock()
	var (
		fresh  []policy.Floor
		newest int64
		at     time.Time
	)
	err := f.store.View(ctx, store.AsLoop("feed"), func(tx *store.Tx) error {
		fresh, at = nil, tx.Now
		if first {
			_, n, err := tx.Floors(0, 1)
			newest = n
			return err
		}
		var err error
		fresh, newest, err = floorsAfter(tx, from)
		return err
	})
	if err != nil {
		return err
	}
	f.publish(at, newest, fresh, first)
	return nil
}

// floorsAfter reads every floor after a sequence.
func floorsAfter(tx *store.Tx, from int64) (all []policy.Floor, newest int64, err error) {
	for {
		page, n, err := tx.Floors(from, floorPage)
		if err != nil {
			return nil, 0, err
		}
		all, newest = append(all, page...), n
		if len(page) < floorPage {
			return all, newest, nil
		}
		from = page[len(page)-1].Seq
	}
}

func (f *Feed) publish(at time.Time, newest int64, fresh []policy.Floor, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first {
		f.base = newest
	}
	f.readAt, f.cursor = at, newest
	f.recent = append(f.recent, fresh...)
	if drop := len(f.recent) - floorsKept; drop > 0 {
		f.base = f.recent[drop-1].Seq
		f.recent = slices.Delete(f.recent, 0, drop)
	}
	close(f.updated)
	f.updated = make(chan struct{})
}

// reading is what one completed read says to a listener at a cursor.
type reading struct {
	at     time.Time
	cursor int64
	floors []policy.Floor
	// behind: the listener must read the store itself.
	behind bool
}

// since returns the last reading for a listener, and a channel that is closed at
// the next one.
func (f *Feed) since(cursor int64) (reading, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := reading{at: f.readAt, cursor: f.cursor, behind: cursor < f.base}
	i, _ := slices.BinarySearchFunc(f.recent, cursor+1, func(fl policy.Floor, seq int64) int { return int(fl.Seq - seq) })
	r.floors = slices.Clone(f.recent[i:])
	return r, f.updated
}

// ReadAt is when the store was last read to the end.
func (f *Feed) ReadAt() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readAt
}

package feed

import (
	"crypto/ed25519"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// Feed is what one broker knows from its server. It is safe for concurrent use.
type Feed struct {
	root ed25519.PublicKey
	log  *slog.Logger

	mu     sync.Mutex // guards below
	clock  clock
	known  state
	cursor int64
	// next is a snapshot of which parts are still to come: until it is whole the
	// old state judges.
	next *state
	// heard says that the stream that was asked for last brought a whole reading,
	// and with it every statement that its server had.
	heard bool
}

// state is what capabilities are judged by.
type state struct {
	floors floors
	keys   map[string]capability.Statement
}

func newState(now time.Duration) state {
	return state{floors: floors{by: map[floorKey]floor{}, swept: now}, keys: map[string]capability.Statement{}}
}

// New knows nothing: Age is negative.
func New(root ed25519.PublicKey, elapsed lease.Elapsed, log *slog.Logger) *Feed {
	return &Feed{root: root, log: log, clock: clock{elapsed: elapsed}, known: newState(elapsed())}
}

// Begin notes that a stream is being asked for and returns the cursor to ask
// from.
func (f *Feed) Begin() (cursor int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock.begin()
	f.next, f.heard = nil, false
	return f.cursor
}

// Apply takes one message of the stream. changed says that capabilities that
// were good may no longer be; an error asks for a new stream.
func (f *Feed) Apply(m *brokerv1.FeedResponse) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.elapsed()
	if m.GetSnapshot() {
		s := newState(now)
		// A server that started anew sends its new key alone; what an earlier process
		// signed lives on until it expires, and the root's word bounds its key.
		maps.Copy(s.keys, f.known.keys)
		f.next = &s
	} else if f.next == nil && m.GetCursor() < f.cursor {
		return false, anew("the server's cursor went back")
	}
	for _, fl := range m.GetFloors() {
		changed = f.known.floors.raise(fl, now) || changed
		if f.next != nil {
			f.next.floors.raise(fl, now)
		}
	}
	for _, jws := range m.GetSigningStatements() {
		f.certifyLocked(jws)
	}
	// A message without a time is a part: more floors follow.
	if m.GetStoreReadUs() <= 0 {
		return changed, nil
	}
	if f.next != nil {
		f.known, f.next, changed, f.cursor = *f.next, nil, true, 0
	}
	f.heard = true
	f.cursor = max(f.cursor, m.GetCursor())
	f.known.floors.sweep(now)
	return changed, f.clock.observe(m.GetStoreReadUs())
}

func (f *Feed) certifyLocked(jws string) {
	s, err := capability.VerifyStatement(jws, f.root)
	if err != nil {
		f.log.Error("a key statement of the feed is refused", "error", err)
		return
	}
	if f.next != nil {
		f.next.keys[s.KeyID] = s
	}
	f.known.keys[s.KeyID] = s
	if now, ok := f.clock.now(); ok {
		for id, k := range f.known.keys {
			if !now.Before(k.NotAfter) {
				delete(f.known.keys, id)
			}
		}
	}
}

// Age of the newest reading of the server's store; negative before the first.
func (f *Feed) Age() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock.age()
}

// Now is the feed's time plus what has elapsed since.
func (f *Feed) Now() (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock.now()
}

// Key finds a signing key that is certified and in force; it is a
// capability.KeyFunc.
func (f *Feed) Key(id string) (ed25519.PublicKey, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.known.keys[id]
	if !ok {
		return nil, false
	}
	if now, known := f.clock.now(); !known || !s.InForce(now) {
		return nil, false
	}
	return s.PublicKey, true
}

// Below reports that a subject's value is under its floor. INV-13, INV-16.
func (f *Feed) Below(kind brokerv1.FloorKind, id string, value int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl, ok := f.known.floors.by[floorKey{kind, id}]
	return ok && value < fl.minimum
}

// RevokedGrants are those that the server says were taken back.
func (f *Feed) RevokedGrants() []protocol.GrantID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.known.floors.taken)
}

// Check refuses when the feed is older than limit.
func (f *Feed) Check(limit time.Duration) error {
	switch age := f.Age(); {
	case age < 0:
		return later("the broker has no feed of its server yet; check that bivouac-server runs")
	case age > limit:
		return later("the broker's feed is %s old and nothing new is admitted; check that bivouac-server runs", age.Round(time.Millisecond))
	}
	return nil
}

// Certify takes the root's word about a key from whoever has it before the server
// says it: the broker that signed it. What it certifies works at once, whichever
// server's feed is followed.
func (f *Feed) Certify(statement string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.certifyLocked(statement)
}

// keysSettle is how long after a stream was asked for its server may still learn of
// keys that the other servers of its store sign with.
const keysSettle = 5 * time.Second

// CheckKeys refuses while a key that is not known may still be certified by what
// the server is about to say: while a stream is young, before its first whole
// reading, and before a statement that is in force.
func (f *Feed) CheckKeys() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, known := f.clock.now()
	if known && f.heard && f.clock.elapsed()-f.clock.stream.asked >= keysSettle {
		for _, s := range f.known.keys {
			if s.InForce(now) {
				return nil
			}
		}
	}
	return later("the broker has not heard yet which keys sign for its server; check that bivouac-server runs")
}

// retryAfter is how soon a feed that begins is usually current.
const retryAfter = time.Second

func later(format string, args ...any) error {
	err := protocol.Errorf(protocol.CodeUnavailable, format, args...)
	err.RetryAfter = retryAfter
	return err
}

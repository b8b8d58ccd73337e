package feed

import (
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"testing"
	"time"

	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// world has two clocks: the broker's elapsed time and the server's wall clock.
type world struct {
	t       *testing.T
	feed    *Feed
	root    *identitytest.Root
	elapsed time.Duration
	server  time.Time
	cursor  int64
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, root: identitytest.NewRoot(), elapsed: 5 * time.Hour, server: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	w.feed = New(w.root.Key.Public().(ed25519.PublicKey), func() time.Duration { return w.elapsed }, slog.New(slog.DiscardHandler))
	return w
}

// pass lets both clocks run.
func (w *world) pass(d time.Duration) { w.elapsed += d; w.server = w.server.Add(d) }

// hear applies a message whose store reading ended now.
func (w *world) hear(m *brokerv1.FeedResponse) (bool, error) {
	m.StoreReadUs = w.server.UnixMicro()
	w.cursor = max(w.cursor, m.GetCursor())
	m.Cursor = w.cursor
	return w.feed.Apply(m)
}

func (w *world) beat() error {
	_, err := w.hear(&brokerv1.FeedResponse{})
	return err
}

// connect begins a stream whose first two messages come at once and 250 ms later.
func (w *world) connect() {
	w.t.Helper()
	w.feed.Begin()
	w.pass(10 * time.Millisecond)
	if _, err := w.hear(&brokerv1.FeedResponse{Snapshot: w.cursor == 0}); err != nil {
		w.t.Fatal(err)
	}
	w.pass(250 * time.Millisecond)
	if err := w.beat(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) age(least, most time.Duration) {
	w.t.Helper()
	if got := w.feed.Age(); got < least || got > most {
		w.t.Errorf("age %s, want %s to %s", got, least, most)
	}
}

// INV-20: the age counts elapsed time since a reading, from below zero before
// the first to hours after a suspend.
func TestAge(t *testing.T) {
	w := newWorld(t)
	w.age(-1, -1)
	if err := w.feed.Check(time.Second); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("without a feed: %v", err)
	}
	w.connect()
	w.age(0, 260*time.Millisecond)
	if err := w.feed.Check(time.Second); err != nil {
		t.Errorf("a fresh feed: %v", err)
	}
	for range 100 {
		w.pass(250 * time.Millisecond)
		if err := w.beat(); err != nil {
			t.Fatal(err)
		}
	}
	w.age(0, 260*time.Millisecond)
	w.pass(3 * time.Hour) // asleep
	w.age(3*time.Hour, 3*time.Hour+time.Second)
	if err := w.feed.Check(2 * time.Second); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("after a suspend: %v", err)
	}
}

// A stream whose server cannot read its store says the same instant again and
// again: it makes nothing fresh, not even a new stream.
func TestHangingStoreIsNotFresh(t *testing.T) {
	w := newWorld(t)
	w.connect()
	stuck := &brokerv1.FeedResponse{StoreReadUs: w.server.UnixMicro()}
	for range 40 {
		w.pass(250 * time.Millisecond)
		if _, err := w.feed.Apply(stuck); err != nil {
			t.Fatal(err)
		}
	}
	w.age(10*time.Second, 11*time.Second)
	w.feed.Begin()
	if _, err := w.feed.Apply(stuck); err != nil {
		t.Fatal(err)
	}
	w.age(10*time.Second, 11*time.Second)
	w.pass(250 * time.Millisecond)
	if err := w.beat(); err != nil { // the store is back
		t.Fatal(err)
	}
	w.age(0, 260*time.Millisecond)
}

// A message that was delayed on its way is as old as it is.
func TestDelayedMessage(t *testing.T) {
	w := newWorld(t)
	w.connect()
	read := w.server.UnixMicro() + 1
	w.pass(1500 * time.Millisecond)
	if _, err := w.feed.Apply(&brokerv1.FeedResponse{StoreReadUs: read}); err != nil {
		t.Fatal(err)
	}
	w.age(1500*time.Millisecond, 1800*time.Millisecond)
}

// A clock that is set starts the feed anew and never makes it younger.
func TestServerClockIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		w := newWorld(t)
		w.connect()
		w.pass(time.Second)
		w.server = w.server.Add(by)
		if err := w.beat(); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("%s: %v", name, err)
		}
		w.age(time.Second, 2*time.Second)
		w.connect()
		w.age(0, 300*time.Millisecond)
		if now, ok := w.feed.Now(); !ok || now.Sub(w.server).Abs() > 300*time.Millisecond {
			t.Errorf("%s: feed time %s, server %s", name, now, w.server)
		}
	}
	// The positive twin: a clock that runs 0.1 % fast for an hour is followed.
	w := newWorld(t)
	w.connect()
	for range 4 * 3600 {
		w.pass(250 * time.Millisecond)
		w.server = w.server.Add(250 * time.Microsecond)
		if err := w.beat(); err != nil {
			t.Fatal(err)
		}
	}
	w.age(0, 260*time.Millisecond)
}

func TestSlowFirstAnswerIsNoAnchor(t *testing.T) {
	w := newWorld(t)
	w.feed.Begin()
	if _, err := w.hear(&brokerv1.FeedResponse{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	w.pass(1100 * time.Millisecond)
	if err := w.beat(); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
	w.age(-1, -1)
	w.connect()
	w.age(0, 300*time.Millisecond)
}

func grantFloor(id string, seq int64) *brokerv1.Floor {
	return &brokerv1.Floor{Seq: seq, Kind: brokerv1.FloorKind_FLOOR_KIND_GRANT, Id: id, Minimum: 1<<63 - 1}
}

func turnFloor(id string, minimum int64) *brokerv1.Floor {
	return &brokerv1.Floor{Kind: brokerv1.FloorKind_FLOOR_KIND_TURN, Id: id, Minimum: minimum}
}

// INV-13 and INV-16: what is below a floor is refused, what is at it is not.
func TestFloors(t *testing.T) {
	w := newWorld(t)
	w.connect()
	changed, err := w.hear(&brokerv1.FeedResponse{Cursor: 7, Floors: []*brokerv1.Floor{grantFloor("grt_a", 6), turnFloor("trn_a", 3)}})
	if err != nil || !changed {
		t.Fatalf("changed=%v %v", changed, err)
	}
	grant, turn := brokerv1.FloorKind_FLOOR_KIND_GRANT, brokerv1.FloorKind_FLOOR_KIND_TURN
	for _, tc := range []struct {
		kind  brokerv1.FloorKind
		id    string
		value int64
		below bool
	}{
		{grant, "grt_a", 0, true}, {grant, "grt_b", 0, false}, {turn, "trn_a", 2, true}, {turn, "trn_a", 3, false}, {turn, "grt_a", 0, false},
	} {
		if got := w.feed.Below(tc.kind, tc.id, tc.value); got != tc.below {
			t.Errorf("%s %s %d: below=%v", tc.kind, tc.id, tc.value, got)
		}
	}
	// A floor never sinks, and a repetition changes nothing.
	if changed, _ := w.hear(&brokerv1.FeedResponse{Floors: []*brokerv1.Floor{turnFloor("trn_a", 1)}}); changed || !w.feed.Below(turn, "trn_a", 2) {
		t.Error("a floor sank")
	}
	if got := w.feed.Begin(); got != 7 {
		t.Errorf("cursor %d", got)
	}
	// A cursor that goes back without a snapshot is refused.
	if _, err := w.feed.Apply(&brokerv1.FeedResponse{Cursor: 3, StoreReadUs: 1}); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// A snapshot in parts replaces the old state only when it is whole, and new
// floors in it hold from the first part on.
func TestSnapshotInParts(t *testing.T) {
	w := newWorld(t)
	w.connect()
	grant := brokerv1.FloorKind_FLOOR_KIND_GRANT
	if _, err := w.hear(&brokerv1.FeedResponse{Cursor: 9, Floors: []*brokerv1.Floor{grantFloor("old", 1), grantFloor("kept", 2)}}); err != nil {
		t.Fatal(err)
	}
	w.feed.Begin()
	if _, err := w.feed.Apply(&brokerv1.FeedResponse{Snapshot: true, Cursor: 1, Floors: []*brokerv1.Floor{grantFloor("kept", 1)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.feed.Apply(&brokerv1.FeedResponse{Cursor: 2, Floors: []*brokerv1.Floor{grantFloor("new", 2)}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"old", "kept", "new"} {
		if !w.feed.Below(grant, id, 0) {
			t.Errorf("%s has no floor while the snapshot comes", id)
		}
	}
	w.cursor = 3
	if _, err := w.hear(&brokerv1.FeedResponse{Cursor: 3}); err != nil {
		t.Fatal(err)
	}
	if w.feed.Below(grant, "old", 0) || !w.feed.Below(grant, "kept", 0) || !w.feed.Below(grant, "new", 0) {
		t.Error("the whole snapshot did not replace the old state")
	}
}

func TestFleetingFloorsAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.connect()
	if _, err := w.hear(&brokerv1.FeedResponse{Floors: []*brokerv1.Floor{grantFloor("g", 1), turnFloor("t", 5)}}); err != nil {
		t.Fatal(err)
	}
	for w.elapsed < 6*time.Hour {
		w.pass(250 * time.Millisecond)
		if err := w.beat(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.feed.known.floors.by); n != 1 || !w.feed.Below(brokerv1.FloorKind_FLOOR_KIND_GRANT, "g", 0) {
		t.Errorf("%d floors are kept", n)
	}
}

// Only the root certifies keys, and only while they are in force.
func TestKeys(t *testing.T) {
	w := newWorld(t)
	w.connect()
	certify := func(root *identitytest.Root, from, to time.Duration) (string, string) {
		k, err := capability.NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		jws, err := capability.Certify(root.Key, "rep_1", k.Public(), w.server.Add(from), w.server.Add(to))
		if err != nil {
			t.Fatal(err)
		}
		return jws, k.ID
	}
	good, goodID := certify(w.root, -time.Minute, time.Hour)
	forged, forgedID := certify(identitytest.NewRoot(), -time.Minute, time.Hour)
	future, futureID := certify(w.root, time.Minute, time.Hour)
	if _, err := w.hear(&brokerv1.FeedResponse{Cursor: 1, SigningStatements: []string{good, forged, future, "nonsense"}}); err != nil {
		t.Fatal(err)
	}
	want := func(id string, known bool) {
		t.Helper()
		if _, ok := w.feed.Key(id); ok != known {
			t.Errorf("key known=%v, want %v", ok, known)
		}
	}
	want(goodID, true)
	want(forgedID, false)
	want(futureID, false)
	if err := w.feed.CheckKeys(); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("in a young stream: %v", err)
	}
	w.elapsed, w.server = w.elapsed+keysSettle, w.server.Add(keysSettle)
	if err := w.feed.CheckKeys(); err != nil {
		t.Errorf("with a statement in force: %v", err)
	}
	// What this broker certified itself counts before the server says it.
	own, ownID := certify(w.root, -time.Minute, time.Hour)
	w.feed.Certify(forged)
	w.feed.Certify(own)
	want(ownID, true)
	want(forgedID, false)
	w.feed.Begin() // what an asked stream says may certify more
	if err := w.feed.CheckKeys(); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("before the first reading of a stream: %v", err)
	}
	// A server that starts anew has another key; work under the earlier one goes on.
	next, nextID := certify(w.root, -time.Minute, time.Hour)
	w.feed.Begin()
	if _, err := w.hear(&brokerv1.FeedResponse{Snapshot: true, Cursor: 1, SigningStatements: []string{next}}); err != nil {
		t.Fatal(err)
	}
	want(goodID, true)
	want(nextID, true)
	want(forgedID, false)
	w.pass(30 * time.Minute)
	w.connect()
	want(futureID, true)
	w.pass(31 * time.Minute)
	want(goodID, false)
}

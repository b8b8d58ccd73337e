package edge

import "testing"

// A delivery that comes again, from the connection before or the one after, is
// dealt with once; what could not be dealt with is wanted again; and nothing is
// acknowledged before everything up to it is done.
func TestMailboxOverConnections(t *testing.T) {
	var m mailbox
	due := func(want int64) {
		t.Helper()
		seq, ok := m.due()
		if ok != (want > 0) || ok && seq != want {
			t.Errorf("due %d %v, want %d", seq, ok, want)
		}
	}
	begin := func(seq int64, want bool) {
		t.Helper()
		if got := m.begin(seq); got != want {
			t.Errorf("delivery %d is new: %v, want %v", seq, got, want)
		}
	}
	if after := m.resume(5); after != 4 {
		t.Fatalf("wanted after %d", after)
	}
	begin(5, true)
	begin(6, true)
	begin(7, true)
	m.done(7)
	due(0) // 5 and 6 are not done
	m.miss(6)
	m.done(5)
	due(5)
	m.acknowledged(5)

	// The next connection begins while the last delivery of the old one is open.
	begin(8, true)
	if after := m.resume(6); after != 5 {
		t.Fatalf("wanted after %d", after)
	}
	begin(6, true) // missed
	begin(7, false)
	begin(8, false) // is being dealt with
	due(0)
	m.done(6)
	due(7)
	m.done(8)
	due(8)
	m.acknowledged(8)
	due(0)

	// A server that was put back numbers anew.
	if after := m.resume(3); after != 2 {
		t.Fatalf("wanted after %d", after)
	}
	begin(3, true)
	m.done(3)
	due(3)
}

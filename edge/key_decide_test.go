package edge

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// A decision that was under way while its action ended is refused, and the journal
// keeps nothing of it: neither a record behind the result, nor an attempt that nobody
// ends. One that comes in time is taken. INV-6.
func TestDecisionBehindTheEnd(t *testing.T) {
	yes := func() *runnerv1.OwnerDecided { return &runnerv1.OwnerDecided{Decision: secondkey.Approved} }
	underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
		h := m.daemon.keys.get(id)
		if err := m.daemon.settleKey(id, h.asked, yes()); err != nil {
			t.Errorf("in time: %v", err)
		}
		h.wake.Ring()
		m.ended(id, protocol.ResultSucceeded, "", "new")
	})
	underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
		h := m.daemon.keys.get(id)
		if err := m.daemon.actions.result(id, notApproved("it is over")); err != nil {
			t.Fatal(err)
		}
		if err := m.daemon.settleKey(id, h.asked, yes()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("behind the result: %v", err)
		}
		if e := m.daemon.actions.entry(id); len(e.records) != 3 || e.decided != nil {
			t.Errorf("the journal holds %d records, decided %v", len(e.records), e.decided)
		}
		m.daemon.wakeReport.Ring()
		m.await("the journal to forget it", time.Minute, func() bool { return !m.daemon.actions.entry(id).claimed })
		if err := m.daemon.settleKey(id, h.asked, yes()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("when it is gone: %v", err)
		}
		m.daemon.actions.mu.Lock()
		defer m.daemon.actions.mu.Unlock()
		if n := len(m.daemon.actions.live); n != 0 {
			t.Errorf("the journal holds %d attempts", n)
		}
	})
}

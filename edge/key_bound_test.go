package edge

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
)

// A question says which bound counts: the owner's own ttl, or a shorter one of the
// server, beside which the owner's is shown.
func TestQuestionShowsTheBoundThatCounts(t *testing.T) {
	for _, most := range []time.Duration{0, time.Minute, time.Hour} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.save(keyed(m)) // ten minutes
			m.write("a.txt", "old")
			m.run()
			m.connected()
			id, work := newAttempt(), writing("new")
			work.GetDevice().MaxOwnerWaitMs = most.Milliseconds()
			f.offer(id, protocol.KindAction, work)
			q := m.asked(id)
			want := 10 * time.Minute
			if most == time.Minute {
				want = most
			}
			if q.WaitMs != want.Milliseconds() || q.KeyTTLMs != (10*time.Minute).Milliseconds() || q.ExpiresInMs > q.WaitMs {
				t.Errorf("with %s from the server it waits %d ms of the owner's %d, and has %d left", most, q.WaitMs, q.KeyTTLMs, q.ExpiresInMs)
			}
		})
	}
}

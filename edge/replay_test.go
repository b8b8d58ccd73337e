package edge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// A delivery that is sent again, within a stream, on the next one, or after it was
// acknowledged, does nothing again: one claim, one effect, one set of records.
// INV-5, INV-14.
func TestReplayedDeliveriesDoNothingAgain(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id := newAttempt()
		f.offer(id, protocol.KindAction, deviceWork(device.Write, map[string]any{"path": "notes/a.txt", "content": "once"}))
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
		if got := m.read("a.txt"); got != "once" {
			t.Fatalf("the file holds %q", got)
		}
		m.write("a.txt", "by its owner, afterwards")
		offer := &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Offer{Offer: &runnerv1.Offer{AttemptId: id.String(), SubjectKind: protocol.KindAction}}}
		claims := func() int { return get(f, func() int { return strings.Count(strings.Join(f.log, "\n"), "claim") }) }
		f.with(func() { delete(f.work, id.String()) }) // it has ended there
		before := claims()
		// The same frame twice, and an older one after a newer one.
		f.post(proto.CloneOf(offer))
		f.with(func() {
			last := f.mail[len(f.mail)-1]
			f.mail = append(f.mail, last, &runnerv1.AttachResponse{Seq: 1, Kind: offer.GetKind()})
		})
		time.Sleep(10 * time.Second)
		// The whole mailbox again, on a new connection.
		m.daemon.link.Drop()
		m.connected()
		time.Sleep(10 * time.Second)
		if got := m.read("a.txt"); got != "by its owner, afterwards" {
			t.Errorf("the effect happened again: %q", got)
		}
		if n := get(f, func() int { return len(f.reports[id.String()]) }); n != 3 {
			t.Errorf("%d records, want 3", n)
		}
		if n := len(m.daemon.Status().Attempts); n != 0 {
			t.Errorf("%d attempts are left", n)
		}
		if n := claims() - before; n > 2 { // an offer under a new number is asked for, and refused
			t.Errorf("%d more claims", n)
		}
		// The positive twin: another offer is work.
		next := newAttempt()
		f.offer(next, protocol.KindAction, deviceWork(device.Read, map[string]any{"path": "notes/a.txt"}))
		m.await("the next result", 10*time.Second, func() bool { return f.result(next) != nil })
	})
}

// An answer of a tool that is sent again reaches the supervisor once, or harmlessly
// again, and is acknowledged.
func TestReplayedAnswerIsAcknowledged(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
		answer := &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_ToolAnswer{ToolAnswer: &runnerv1.ToolAnswer{AttemptId: id.String(), CallId: "c1", Result: []byte("r")}}}
		f.post(proto.CloneOf(answer))
		f.post(proto.CloneOf(answer))
		m.await("the answers", 10*time.Second, func() bool { return w.see(func() bool { return len(w.answers) > 0 }) })
		m.await("the acknowledgement", 10*time.Second, func() bool { return get(f, func() bool { return f.acked == 3 }) })
		if got := slices.Compact(slices.Clone(w.answers)); !slices.Equal(got, []string{"c1=r"}) {
			t.Errorf("answers %v", got)
		}
	})
}

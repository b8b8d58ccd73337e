package edge

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/edge/runtime/runtimev1"
)

// codingWork is the work of a turn with a prompt.
func codingWork(t *testing.T, prompt string) *runnerv1.Work {
	t.Helper()
	spec, err := proto.Marshal(&runtimev1.Spec{Messages: []*runtimev1.Message{{Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: prompt}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{Spec: spec}}}
}

// offerShown offers a turn as a server does to a machine whose owner holds the key. given
// is what a claim then hands over.
func (f *fakeServer) offerShown(id protocol.AttemptID, shown, given *runnerv1.Work) {
	raw, err := proto.Marshal(given)
	if err != nil {
		f.t.Fatal(err)
	}
	said, err := proto.Marshal(shown)
	if err != nil {
		f.t.Fatal(err)
	}
	turn, err := secondkey.ShownOf(shown)
	if err != nil {
		f.t.Fatal(err)
	}
	turn.Origin = &runnerv1.WorkOrigin{Principal: "alice", Agent: "coder", SessionId: "ses_1", TurnId: "trn_1"}
	f.with(func() { f.work[id.String()] = raw; delete(f.declined, id.String()) })
	f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Offer{Offer: &runnerv1.Offer{
		AttemptId: id.String(), SubjectKind: protocol.KindTurn, SpecDigest: canonical.Digest(said), Turn: turn}}})
}

// declinedFor waits until an offer came back.
func (m *machine) declinedFor(id protocol.AttemptID) (reason string) {
	m.t.Helper()
	m.await("a decline", 10*time.Second, func() bool {
		reason = get(m.server, func() string { return m.server.declined[id.String()] })
		return reason != ""
	})
	return reason
}

func underTurnKey(t *testing.T, test func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work)) {
	t.Helper()
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.save(owner.Policy{Slots: 1, SecondKeys: []owner.SecondKey{{Over: secondkey.Turn, TTL: 10 * time.Minute}}})
		m.run()
		m.connected()
		id, w := newAttempt(), codingWork(t, "mend\u202e it")
		f.offerShown(id, w, w)
		if reason := m.declinedFor(id); !strings.Contains(reason, "bivouac-edge approve "+id.String()+" --state ") {
			t.Fatalf("declined with %q", reason)
		}
		test(t, f, m, id, w)
	})
}

// INV-6, INV-7: a turn that waits for the owner is not claimed, also over a restart;
// with a yes the next offer of the same work is, and of other work it is not.
func TestSecondKeyOverTurns(t *testing.T) {
	t.Run("approved", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work) {
			q := m.daemon.Questions()
			if len(q) != 1 || q[0].Work != secondkey.Turn || q[0].Principal != "alice" || !strings.Contains(q[0].Arguments, "mend") || m.daemon.Status().Questions != 1 {
				t.Fatalf("asked %+v", q)
			}
			if err := m.stop(); err != nil {
				t.Fatal(err)
			}
			m.run()
			m.connected()
			if again := m.daemon.Questions(); len(again) != 1 || again[0].Digest != q[0].Digest {
				t.Fatalf("after a restart %+v", again)
			}
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: canonical.Digest(nil), Approve: true}, "me"); protocol.CodeOf(err) != protocol.CodeConflict {
				t.Errorf("a forged digest: %v", err)
			}
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: q[0].Digest, Approve: true}, "me"); err != nil {
				t.Fatal(err)
			}
			if m.twins.get(id) != nil || len(get(f, func() map[string]*fakeClaim { return f.claims })) != 0 {
				t.Error("it was claimed without an offer")
			}
			f.offerShown(id, w, w)
			m.await("the turn", 10*time.Second, func() bool { return m.twins.get(id) != nil })
			if n := len(m.daemon.Questions()); n != 0 {
				t.Errorf("%d questions are left", n)
			}
		})
	})
	t.Run("denied", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work) {
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: m.daemon.Questions()[0].Digest, Reason: "later"}, "me"); err != nil {
				t.Fatal(err)
			}
			f.offerShown(id, w, w)
			if reason := m.declinedFor(id); reason != "its owner denied it: later" || m.twins.get(id) != nil {
				t.Errorf("declined with %q", reason)
			}
		})
	})
	t.Run("expired", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work) {
			time.Sleep(11 * time.Minute)
			f.offerShown(id, w, w)
			if reason := m.declinedFor(id); reason != "its owner did not approve it in time" || len(m.daemon.Questions()) != 0 {
				t.Errorf("declined with %q, %v", reason, m.daemon.Questions())
			}
		})
	})
	t.Run("another prompt under the same name", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, _ *runnerv1.Work) {
			first := m.daemon.Questions()[0].Digest
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: first, Approve: true}, "me"); err != nil {
				t.Fatal(err)
			}
			other := codingWork(t, "delete it")
			f.offerShown(id, other, other)
			if reason := m.declinedFor(id); !strings.Contains(reason, "is asked") || m.daemon.Questions()[0].Digest == first {
				t.Errorf("declined with %q", reason)
			}
		})
	})
	t.Run("a claim that hands over something else", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work) {
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: m.daemon.Questions()[0].Digest, Approve: true}, "me"); err != nil {
				t.Fatal(err)
			}
			f.offerShown(id, w, codingWork(t, "delete it"))
			m.await("the refusal", 10*time.Second, func() bool { return f.result(id) != nil })
			if r := f.result(id); r.GetCode() != string(protocol.CodePolicyDenied) || m.twins.get(id) != nil {
				t.Errorf("result %v", r)
			}
		})
	})
	t.Run("a claim that hands over something else, and a restart before it is answered for", func(t *testing.T) {
		for name, other := range map[string]bool{"something else": true, "what was shown": false} {
			underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID, w *runnerv1.Work) {
				if _, err := m.daemon.decide(Decision{Attempt: id, Digest: m.daemon.Questions()[0].Digest, Approve: true}, "me"); err != nil {
					t.Fatal(err)
				}
				given := w
				if other {
					given = codingWork(t, "delete it")
				}
				f.with(func() { f.mute = true })
				f.offerShown(id, w, given)
				m.await("the claim", 10*time.Second, func() bool { return get(f, func() bool { return f.claims[id.String()] != nil }) })
				time.Sleep(time.Second)
				if err := m.stop(); err != nil {
					t.Fatal(err)
				}
				m.run()
				m.connected()
				time.Sleep(10 * time.Second)
				if runs := m.twins.get(id) != nil; runs == other {
					t.Errorf("%s: after the restart it runs: %v", name, runs)
				}
				f.with(func() { f.mute = false })
			})
		}
	})
	t.Run("a server that does not show it", func(t *testing.T) {
		underTurnKey(t, func(t *testing.T, f *fakeServer, m *machine, _ protocol.AttemptID, w *runnerv1.Work) {
			id := newAttempt()
			f.offer(id, protocol.KindTurn, w)
			if reason := m.declinedFor(id); !strings.Contains(reason, "does not show") {
				t.Errorf("declined with %q", reason)
			}
		})
	})
}

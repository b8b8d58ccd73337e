package edge

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// An attempt is offered again before the end of its first allocation could be told: what
// it is offered now stands, and the first one's end is not said of it. INV-14.
func TestOfferedAgainBeforeTheEndWasTold(t *testing.T) {
	over := func(f *fakeServer, m *machine) state.Attempt {
		a, first := m.awaitedTurn()
		m.takes(a, first)
		f.net.Cut(true)
		m.dies(a)
		m.await("the first one's end", time.Minute, func() bool { w := m.daemon.awaiting.get(a.ID); return w != nil && w.over.Load() && !a.Exists() })
		return a
	}
	begins := func(t *testing.T, f *fakeServer, m *machine, a state.Attempt, job string) {
		t.Helper()
		m.await("the turn to begin", time.Minute, func() bool {
			w := m.twins.get(a.ID)
			return w != nil && w.see(func() bool { return w.begun != nil })
		})
		time.Sleep(10 * time.Second)
		// The end may be told just before the offer comes: of the first one, which it names.
		claimed, declined := get(f, func() string { return f.claimed[a.ID.String()] }), get(f, func() string { return f.declinedJob[a.ID.String()] })
		if n, _ := f.claimsOf(a.ID); n != 1 || claimed != job || f.declinedFor(a.ID) != "" && declined != protocol.AllocationJob(a.ID, 1) {
			t.Errorf("%d claims of %q, declined %q with %q", n, claimed, declined, f.declinedFor(a.ID))
		}
	}
	t.Run("with another allocation", func(t *testing.T) {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			a := over(f, m)
			second := protocol.AllocationJob(a.ID, 2)
			f.offerAllocation(a.ID, second, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
			f.net.Cut(false)
			m.expects(a.ID, second)
			other := newAttempt()
			f.offer(other, protocol.KindTurn, &runnerv1.Work{})
			m.await("the refusal of another turn", time.Minute, func() bool { return strings.Contains(f.declinedFor(other), "all 1 slots") })
			m.task(a, second)
			begins(t, f, m, a, second)
		})
	})
	t.Run("as turns are otherwise", func(t *testing.T) {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			a := over(f, m)
			f.offer(a.ID, protocol.KindTurn, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
			f.net.Cut(false)
			begins(t, f, m, a, "")
		})
	})
	t.Run("twin: not offered again, it is told", func(t *testing.T) {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			a := over(f, m)
			f.net.Cut(false)
			m.gone(a)
			if f.declinedFor(a.ID) == "" || get(f, func() string { return f.declinedJob[a.ID.String()] }) != protocol.AllocationJob(a.ID, 1) {
				t.Errorf("declined with %q", f.declinedFor(a.ID))
			}
		})
	})
}

// The server ends an attempt while its answer to the claim is under way: the work does not
// begin, in an allocation as elsewhere.
func TestStopWhileItIsClaimed(t *testing.T) {
	for name, c := range map[string]struct{ own, stops bool }{
		"in an allocation": {true, true}, "elsewhere": {false, true}, "twin: not stopped": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
				held := make(chan struct{})
				f.with(func() { f.heldClaims = held })
				m.run()
				m.connected()
				id := newAttempt()
				if c.own {
					a, job := m.awaitedTurn()
					id = a.ID
					m.task(a, job)
				} else {
					f.offer(id, protocol.KindTurn, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
				}
				m.await("the claim", time.Minute, func() bool { _, nonce := f.claimsOf(id); return nonce != "" })
				if c.stops {
					f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{Stop: &runnerv1.Stop{AttemptId: id.String(), Reason: "the user cancelled"}}})
				}
				time.Sleep(time.Second)
				close(held)
				if !c.stops {
					m.await("the turn to begin", time.Minute, func() bool { w := m.twins.get(id); return w.see(func() bool { return w.begun != nil }) })
					return
				}
				// Where the stop found it claimed its supervisor may have begun, and has the word.
				m.await("its end", time.Minute, func() bool {
					w := m.twins.get(id)
					return f.result(id).GetStatus() == protocol.ResultCancelled || w != nil && w.see(func() bool { return w.stopped == "the user cancelled" })
				})
			})
		})
	}
}

// An offer that the server takes back frees its slot at once and is no refusal; the word
// about another offer of the attempt, or about one that was claimed, ends nothing.
func TestOfferIsTakenBack(t *testing.T) {
	takenBack := func(f *fakeServer, id protocol.AttemptID, job string) {
		f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{Stop: &runnerv1.Stop{AttemptId: id.String(), Allocation: job, Reason: "its task failed"}}})
	}
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		m.takes(a, job)
		takenBack(f, a.ID, job)
		next, other := m.awaitedTurn() // into the one slot of this machine
		m.gone(a)
		if f.declinedFor(a.ID) != "" || f.declinedFor(next.ID) != "" {
			t.Errorf("declined with %q, the next with %q", f.declinedFor(a.ID), f.declinedFor(next.ID))
		}
		takenBack(f, next.ID, protocol.AllocationJob(next.ID, 7))
		time.Sleep(10 * time.Second)
		w := m.task(next, other)
		m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
		takenBack(f, next.ID, other)
		time.Sleep(10 * time.Second)
		if w.see(func() bool { return w.stopped != "" }) {
			t.Error("what was claimed is stopped")
		}
	})
	// Its end may not have been told yet: the server knows better.
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		m.takes(a, job)
		f.net.Cut(true)
		m.dies(a)
		m.await("its end", time.Minute, func() bool { w := m.daemon.awaiting.get(a.ID); return w != nil && w.over.Load() })
		m.daemon.stopAttempt(&runnerv1.Stop{AttemptId: a.ID.String(), Allocation: job})
		m.gone(a)
		f.net.Cut(false)
		time.Sleep(time.Minute)
		if f.declinedFor(a.ID) != "" {
			t.Errorf("declined with %q", f.declinedFor(a.ID))
		}
	})
}

// A delivery that comes again after a later one is not heard: the later offer stands.
func TestOlderOfferComesAgain(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id := newAttempt()
		a, work := m.dir.Attempt(id), &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}}
		f.offerAllocation(id, protocol.AllocationJob(id, 10), work)
		m.expects(id, protocol.AllocationJob(id, 10))
		for _, n := range []int{1, 9, 10} {
			f.offerAllocation(id, protocol.AllocationJob(id, n), work)
			time.Sleep(5 * time.Second)
			if have, _ := a.Allocation(); have.Job != protocol.AllocationJob(id, 10) || f.declinedFor(id) != "" {
				t.Errorf("after offer %d: the directory is %s's, declined with %q", n, have.Job, f.declinedFor(id))
			}
		}
		f.offerAllocation(id, protocol.AllocationJob(id, 11), work)
		m.expects(id, protocol.AllocationJob(id, 11))
	})
}

package edge

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

const testAlloc = "6d2b57f4-4a4e-4c4c-9d0e-0123456789ab"

// offerAllocation makes a turn claimable and offers it with an allocation.
func (f *fakeServer) offerAllocation(id protocol.AttemptID, job string, w *runnerv1.Work) {
	raw, err := proto.Marshal(w)
	if err != nil {
		f.t.Fatal(err)
	}
	f.with(func() { f.work[id.String()] = raw })
	f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Offer{Offer: &runnerv1.Offer{AttemptId: id.String(), SubjectKind: protocol.KindTurn,
		DeadlineUs: time.Now().Add(5 * time.Minute).UnixMicro(), Allocation: job}}})
}

// awaitedTurn offers a turn and returns when the daemon waits for its allocation.
func (m *machine) awaitedTurn() (state.Attempt, string) {
	m.t.Helper()
	id := newAttempt()
	job := protocol.AllocationJob(id, 1)
	m.server.offerAllocation(id, job, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
	m.expects(id, job)
	return m.dir.Attempt(id), job
}

func (m *machine) expects(id protocol.AttemptID, job string) {
	m.t.Helper()
	m.await("the directory of "+job, time.Minute, func() bool {
		have, ok := m.dir.Attempt(id).Allocation()
		return ok && have.Job == job && m.daemon.awaiting.get(id) != nil
	})
}

// takes is the beginning of what another scheduler runs.
func (m *machine) takes(a state.Attempt, job string) {
	m.t.Helper()
	if _, err := a.Take(job, testAlloc); err != nil {
		m.t.Fatal(err)
	}
}

// task is what another scheduler runs: it takes the directory and serves there.
func (m *machine) task(a state.Attempt, job string) *twin {
	m.t.Helper()
	m.takes(a, job)
	if err := m.cfg.Supervisors.Start(m.t.Context(), a); err != nil {
		m.t.Fatal(err)
	}
	return m.twins.get(a.ID)
}

// begunTask runs the daemon until the task of a turn has begun.
func (m *machine) begunTask() (state.Attempt, *twin) {
	m.t.Helper()
	m.run()
	m.connected()
	a, job := m.awaitedTurn()
	w := m.task(a, job)
	m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
	return a, w
}

// dies makes the process that took a directory one that has ended.
func (m *machine) dies(a state.Attempt) {
	m.t.Helper()
	mark, _, err := a.Mark()
	if err != nil {
		m.t.Fatal(err)
	}
	mark.PID = 1 << 30
	b, err := json.Marshal(mark)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(a.Path(), "taken"), b, 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := m.cfg.Supervisors.Kill(m.t.Context(), a); err != nil {
		m.t.Fatal(err)
	}
}

func (f *fakeServer) claimsOf(id protocol.AttemptID) (n int, nonce string) {
	return get(f, func() int { return count(f.log, "claim") }), get(f, func() string {
		if c := f.claims[id.String()]; c != nil {
			return c.nonce
		}
		return ""
	})
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

func (f *fakeServer) declinedFor(id protocol.AttemptID) string {
	return get(f, func() string { return f.declined[id.String()] })
}

func (m *machine) gone(a state.Attempt) {
	m.t.Helper()
	m.await("the end of the wait", time.Minute, func() bool { return m.daemon.awaiting.get(a.ID) == nil && !a.Exists() })
}

// A turn with an allocation of its own is claimed when its supervisor has taken the
// directory and not before, once, under that one's nonce; the rest is as ever. INV-14.
func TestAllocationFromOfferToResult(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		digest := canonical.Digest([]byte("workspace"))
		f.with(func() { f.blobs[digest] = []byte("workspace") })
		m.run()
		m.connected()
		if !get(f, func() bool { return f.facts.GetAllocations() }) {
			t.Error("the server does not know that allocations are waited for (INV-11)")
		}
		id := newAttempt()
		job, a := protocol.AllocationJob(id, 1), m.dir.Attempt(id)
		f.offerAllocation(id, job, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{WorkspaceDigest: digest}}})
		m.expects(id, job)
		time.Sleep(3 * time.Minute)
		if n, _ := f.claimsOf(id); n != 0 || m.twins.get(id) != nil {
			t.Fatalf("%d claims before there was a supervisor", n)
		}
		waits := m.daemon.Status().Attempts
		if len(waits) != 1 || waits[0].State != "waiting" || waits[0].Allocation != job || !strings.Contains(waits[0].Reason, "for Nomad to start") {
			t.Errorf("status says %+v", waits)
		}
		w := m.task(a, job)
		m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
		if b, err := os.ReadFile(a.Blob(digest)); err != nil || string(b) != "workspace" {
			t.Errorf("the workspace was not staged before Begin: %v", err)
		}
		n, nonce := f.claimsOf(id)
		if mark, _, err := a.Mark(); err != nil || n != 1 || nonce != mark.BootNonce {
			t.Errorf("%d claims under %q, the mark says %q, %v", n, nonce, mark.BootNonce, err)
		}
		runs := m.daemon.Status().Attempts
		if len(runs) != 1 || runs[0].State != "running" || runs[0].Allocation != job {
			t.Errorf("status says %+v", runs)
		}
		if _, err := a.Take(job, testAlloc); !errors.Is(err, state.ErrTaken) {
			t.Errorf("a second task: %v", err)
		}
		w.finish(&runnerv1.Result{Status: protocol.ResultSucceeded})
		m.await("the result", 10*time.Second, func() bool { return f.result(id).GetStatus() == protocol.ResultSucceeded })
		m.gone(a)
		if _, err := a.Take(job, testAlloc); !errors.Is(err, state.ErrNotYet) {
			t.Errorf("a task that is run again after the end: %v", err)
		}
		if n, _ := f.claimsOf(id); n != 1 {
			t.Errorf("%d claims", n)
		}
	})
}

// A turn that waits has its slot: nothing else is claimed into it. The wait ends at the
// offer's deadline, and then nobody can take the directory and the slot is free.
func TestAllocationThatNeverComes(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		other := newAttempt()
		f.offer(other, protocol.KindTurn, &runnerv1.Work{})
		m.await("the refusal of another turn", time.Minute, func() bool { return strings.Contains(f.declinedFor(other), "all 1 slots") })
		time.Sleep(4 * time.Minute)
		if !a.Exists() {
			t.Fatal("it was given up before its deadline")
		}
		m.gone(a)
		if _, err := a.Take(job, testAlloc); !errors.Is(err, state.ErrNotYet) {
			t.Errorf("who comes late: %v", err)
		}
		if n, _ := f.claimsOf(a.ID); n != 0 || f.declinedFor(a.ID) != "" {
			t.Errorf("%d claims, declined with %q", n, f.declinedFor(a.ID))
		}
		m.begun(&runnerv1.Work{})
	})
}

// What keeps a turn with an allocation from being claimed is told to the server, with
// nobody left in the directory.
func TestAllocationIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(m *machine, a state.Attempt, job string)
		says    string
	}{
		"its supervisor ended first": {func(m *machine, a state.Attempt, job string) {
			m.takes(a, job)
			m.dies(a)
		}, "ended before the turn was claimed; it has written nothing"},
		"its supervisor ended first and said why": {func(m *machine, a state.Attempt, job string) {
			m.takes(a, job)
			if err := os.WriteFile(a.Log(), []byte("time=1 level=INFO msg=begins\nbivouac-edge: no root for hvs."+strings.Repeat("k", 30)+"\x1b[2J [failed_precondition]\n"), 0o600); err != nil {
				m.t.Fatal(err)
			}
			m.dies(a)
		}, `ended before the turn was claimed; its last words: bivouac-edge: no root for [redacted: vault token]\u001b[2J [failed_precondition]`},
		"its supervisor is deaf": {func(m *machine, a state.Attempt, job string) {
			m.takes(a, job)
		}, "did not answer for 30s before the turn was claimed, and was ended"},
		"the owner paused": {func(m *machine, _ state.Attempt, _ string) {
			if err := m.dir.SetPaused(true); err != nil {
				m.t.Fatal(err)
			}
		}, "paused"},
		"its mark is damaged": {func(m *machine, a state.Attempt, _ string) {
			if err := os.WriteFile(filepath.Join(a.Path(), "taken"), []byte("{"), 0o600); err != nil {
				m.t.Fatal(err)
			}
		}, "damaged"},
		"the server ended it": {func(m *machine, a state.Attempt, _ string) {
			m.server.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{Stop: &runnerv1.Stop{AttemptId: a.ID.String(), Reason: "cancelled"}}})
		}, ""},
		"it is not to be had any more": {func(m *machine, a state.Attempt, job string) {
			m.server.with(func() { delete(m.server.work, a.ID.String()) })
			m.task(a, job)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
				m.run()
				m.connected()
				a, job := m.awaitedTurn()
				c.happens(m, a, job)
				m.gone(a)
				if got := f.declinedFor(a.ID); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
					t.Errorf("declined with %q", got)
				}
				if _, nonce := f.claimsOf(a.ID); nonce != "" {
					t.Error("it was claimed")
				}
				if _, err := a.Take(job, testAlloc); err == nil {
					t.Error("it can be taken")
				}
			})
		})
	}
}

// An allocation that is not the attempt's is refused before a directory is made of it.
func TestForeignAllocationIsDeclined(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		for _, job := range []string{"bivouac-../../x-1", "bivouac-runner", protocol.AllocationJob(newAttempt(), 1), "x"} {
			id := newAttempt()
			f.offerAllocation(id, job, &runnerv1.Work{})
			m.await("the refusal of "+job, time.Minute, func() bool { return strings.Contains(f.declinedFor(id), "not one of this attempt") })
		}
		if left, err := m.dir.Attempts(); err != nil || len(left) > 0 {
			t.Errorf("%v %v", left, err)
		}
		m.awaitedTurn()
	})
}

// Offered again with another allocation, the attempt is that one's alone, whoever had it
// before; offered as turns are otherwise, it is this machine's. It is claimed once.
func TestAttemptIsOfferedAgain(t *testing.T) {
	for _, taken := range []bool{false, true} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			a, first := m.awaitedTurn()
			f.net.Cut(true)
			if taken {
				m.takes(a, first) // and does not answer yet
			}
			time.Sleep(time.Second)
			second := protocol.AllocationJob(a.ID, 2)
			f.offerAllocation(a.ID, second, &runnerv1.Work{})
			f.offerAllocation(a.ID, second, &runnerv1.Work{}) // deliveries repeat
			f.net.Cut(false)
			m.expects(a.ID, second)
			if _, err := a.Take(first, testAlloc); !errors.Is(err, state.ErrOther) {
				t.Errorf("the first allocation: %v", err)
			}
			w := m.task(a, second)
			m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
			if n, _ := f.claimsOf(a.ID); n != 1 {
				t.Errorf("%d claims", n)
			}
		})
	}
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		f.offer(a.ID, protocol.KindTurn, &runnerv1.Work{})
		m.await("the turn to begin", 10*time.Second, func() bool {
			w := m.twins.get(a.ID)
			return w != nil && w.see(func() bool { return w.begun != nil })
		})
		if _, err := a.Take(job, testAlloc); !errors.Is(err, state.ErrOther) {
			t.Errorf("the allocation: %v", err)
		}
	})
}

// A daemon that starts again waits on for an allocation, and finds a supervisor that runs
// in one: the work is not begun again, nor claimed. INV-14.
func TestDaemonRestartFindsAllocations(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		m.run()
		m.connected()
		w := m.task(a, job)
		m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		w.journal(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
		time.Sleep(5 * time.Second)
		m.run()
		m.connected()
		m.await("the records", 10*time.Second, func() bool { return get(f, func() bool { return len(f.reports[a.ID.String()]) == 1 }) })
		time.Sleep(time.Minute)
		n, _ := f.claimsOf(a.ID)
		if w.see(func() bool { return w.begins != 1 || w.stopped != "" || len(w.renewed) < 10 }) || n != 1 || m.twins.get(a.ID) != w {
			t.Errorf("begun %d times, claimed %d times, stopped %q", w.begins, n, w.stopped)
		}
		w.finish(&runnerv1.Result{Status: protocol.ResultSucceeded})
		m.await("the result", 10*time.Second, func() bool { return f.result(a.ID).GetStatus() == protocol.ResultSucceeded })
		m.gone(a)
	})
}

// The supervisor of an allocation that ended under its work, with its machine or alone, is
// answered for: the attempt was interrupted, and nothing begins again. INV-14.
func TestAllocationThatEndedIsInterrupted(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			a, _ := m.begunTask()
			if reboot {
				if err := m.stop(); err != nil {
					t.Fatal(err)
				}
			}
			m.dies(a)
			if reboot {
				m.run()
				m.connected()
			}
			m.await("the result", time.Minute, func() bool { return f.result(a.ID) != nil })
			if r := f.result(a.ID); r.GetCode() != protocol.ResultInterrupted || m.twins.get(a.ID).see(func() bool { return m.twins.get(a.ID).begins > 0 }) {
				t.Errorf("%v", r)
			}
			m.gone(a)
			if n, _ := f.claimsOf(a.ID); n != 1 {
				t.Errorf("%d claims", n)
			}
		})
	}
}

// The task of a finished turn ends by itself: one that were ended would have failed for the
// scheduler that started it. One that does not end is ended.
func TestTaskOfAFinishedTurnEndsByItself(t *testing.T) {
	for _, ends := range []bool{true, false} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			a, w := m.begunTask()
			w.journal(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
			w.finish(&runnerv1.Result{Status: protocol.ResultSucceeded})
			m.await("the result", 10*time.Second, func() bool { return f.result(a.ID).GetStatus() == protocol.ResultSucceeded })
			time.Sleep(stopTimeout / 2) // it answers no more, and its process has not ended
			if !a.Exists() {
				t.Error("it was ended, and its directory removed, while its process lived")
			}
			if ends {
				m.dies(a)
				time.Sleep(time.Second)
			} else {
				time.Sleep(stopTimeout)
			}
			if a.Exists() {
				t.Errorf("its directory is left; its process ends: %t", ends)
			}
		})
	}
}

// sparing counts which sandboxes a sweep spared.
type sparing struct {
	sandbox.Backend
	kept []string
}

func (s *sparing) Tidy(context.Context) error { return nil }

func (s *sparing) Sweep(_ context.Context, keep []string) ([]string, error) {
	s.kept = keep
	return nil, nil
}

// A daemon that is stopped for good ends what it started; what another scheduler started
// is that one's to end, and runs on. Whoever leaves ends both.
func TestEndTurnsSparesAllocations(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		a, _ := m.begunTask()
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		shared := m.dir.Attempt(newAttempt())
		if _, err := shared.Make(); err != nil {
			t.Fatal(err)
		}
		killed := &killed{Spawner: m.cfg.Supervisors}
		s := &sparing{}
		if err := EndTurns(t.Context(), m.dir, killed, s); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(killed.all, []protocol.AttemptID{shared.ID}) || !slices.Equal(s.kept, []string{a.ID.String()}) {
			t.Errorf("killed %v, spared the sandboxes of %v", killed.all, s.kept)
		}
		killed.all = nil
		if _, err := Leave(t.Context(), LeaveParams{State: m.dir, Supervisors: killed, Network: m.cfg.Network, Sandbox: &sparing{}}); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(killed.all, a.ID) || !slices.Contains(killed.all, shared.ID) {
			t.Errorf("whoever leaves ends %v", killed.all)
		}
	})
}

// killed notes whom a spawner ends.
type killed struct {
	Spawner
	all []protocol.AttemptID
}

func (k *killed) Kill(ctx context.Context, a state.Attempt) error {
	k.all = append(k.all, a.ID)
	return k.Spawner.Kill(ctx, a)
}

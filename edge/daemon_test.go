package edge

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

// virtually runs a test with a server and a joined machine in virtual time.
func virtually(t *testing.T, test func(t *testing.T, f *fakeServer, m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		test(t, f, enrolled(t, f))
	})
}

func TestActionIsDoneOnceAndReported(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		id := newAttempt()
		f.offer(id, protocol.KindAction, deviceWork(device.Read, map[string]any{"path": "notes/a.txt"}))
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
		if r := f.result(id); r.GetStatus() != device.Succeeded || !strings.Contains(r.GetOutput(), "alpha") {
			t.Errorf("result %v", r)
		}
		m.await("the acknowledgement", 10*time.Second, func() bool { return get(f, func() bool { return f.acked == 1 }) })
		m.await("the end of the attempt here", time.Second, func() bool { return len(m.daemon.Status().Attempts) == 0 })
		if got := get(f, func() int { return len(f.reports[id.String()]) }); got != 3 {
			t.Errorf("%d records, want started, intent, result", got)
		}
		if m.daemon.Status().Transport != "http/3" {
			t.Errorf("transport %s", m.daemon.Status().Transport)
		}
		if err := m.stop(); err != nil {
			t.Errorf("an ordered end is no error: %v", err)
		}
	})
}

func TestForeignWorkIsDeclinedWithItsReason(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		first, second, odd := newAttempt(), newAttempt(), newAttempt()
		f.offer(first, protocol.KindTurn, &runnerv1.Work{})
		m.await("the first turn", 10*time.Second, func() bool { return m.twins.get(first) != nil })
		f.offer(second, protocol.KindTurn, &runnerv1.Work{})
		f.offer(odd, "workflow-task", &runnerv1.Work{})
		m.await("the declines", 10*time.Second, func() bool { return get(f, func() bool { return len(f.declined) == 2 }) })
		if got := get(f, func() string { return f.declined[second.String()] }); !strings.Contains(got, "all 1 slots") {
			t.Errorf("beyond the slots: %q", got)
		}
		if got := get(f, func() string { return f.declined[odd.String()] }); !strings.Contains(got, "knows no work of kind") {
			t.Errorf("an unknown kind: %q", got)
		}
	})
}

func TestLostClaimIsNoWork(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		taken, ended, mine := newAttempt(), newAttempt(), newAttempt()
		withdrawn, revoked := newAttempt(), newAttempt()
		read := deviceWork(device.Read, map[string]any{"path": "notes/a.txt"})
		f.with(func() { f.claims[taken.String()] = &fakeClaim{nonce: "another"} })
		f.offer(taken, protocol.KindAction, read)
		f.offer(ended, protocol.KindTurn, read)
		f.with(func() { delete(f.work, ended.String()) })
		f.offer(mine, protocol.KindAction, read)
		m.await("the claim that is ours", 10*time.Second, func() bool { return f.result(mine) != nil })
		// Withdrawn while the claim was on its way, or its authority was taken back:
		// that is no word about this machine, which goes on.
		f.with(func() {
			f.refused = map[string]protocol.Code{withdrawn.String(): protocol.CodeNotFound, revoked.String(): protocol.CodePermissionDenied}
		})
		f.offer(withdrawn, protocol.KindAction, read)
		f.offer(revoked, protocol.KindTurn, read)
		last := newAttempt()
		f.offer(last, protocol.KindAction, read)
		m.await("the claim after the refused ones", 10*time.Second, func() bool { return f.result(last) != nil })
		m.await("acknowledgements", 10*time.Second, func() bool { return get(f, func() bool { return f.acked == 6 }) })
		if f.result(taken) != nil || m.twins.get(ended) != nil {
			t.Error("work was done without its claim (INV-14)")
		}
		if left, err := m.dir.Attempts(); err != nil || len(left) != 0 {
			t.Errorf("directories are left: %v %v", left, err)
		}
	})
}

// Deliveries come again until they are acknowledged, over a restart of the
// server; what was dealt with is not done twice.
func TestServerRestartResumesFromTheCursor(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		f.stop()
		id := newAttempt()
		f.offer(id, protocol.KindAction, deviceWork(device.Read, map[string]any{"path": "notes/a.txt"}))
		time.Sleep(time.Minute)
		if m.daemon.Status().Connected {
			t.Fatal("connected to a server that is not there")
		}
		if problem := m.daemon.Status().LastError; !strings.Contains(problem, "cannot reach") {
			t.Errorf("status says %q", problem)
		}
		f.listen()
		m.await("the result", time.Minute, func() bool { return f.result(id) != nil })
		epochs := get(f, func() int64 { return f.epoch })
		if epochs != 2 || m.dir.Epoch() != 2 {
			t.Errorf("epoch %d, remembered %d", epochs, m.dir.Epoch())
		}
		if problem := m.daemon.Status().LastError; problem != "" {
			t.Errorf("the error stays after it was mended: %q", problem)
		}
	})
}

// A claim whose answer was lost is asked for again under the same nonce.
func TestCutLinkRedeliversUnderTheSameNonce(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		f.net.Cut(true)
		id := newAttempt()
		f.offer(id, protocol.KindAction, deviceWork(device.Read, map[string]any{"path": "notes/a.txt"}))
		time.Sleep(40 * time.Second)
		f.net.Cut(false)
		m.await("the result", 2*time.Minute, func() bool { return f.result(id) != nil })
	})
}

func TestFencedRunnerEndsEverything(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id := newAttempt()
		f.offer(id, protocol.KindTurn, &runnerv1.Work{})
		m.await("the turn", 10*time.Second, func() bool { return m.twins.get(id) != nil && m.twins.get(id).begun != nil })
		f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Fenced{Fenced: &runnerv1.Fenced{Reason: "its owner revoked it"}}})
		time.Sleep(time.Minute)
		err := m.stop()
		if protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "its owner revoked it") || !strings.Contains(err.Error(), "bivouac-edge join") {
			t.Errorf("Run says %v", err)
		}
		if w := m.twins.get(id); !w.see(func() bool { return w.stopped != "" }) {
			t.Error("the supervisor was not stopped")
		}
	})
}

func TestForgottenRunnerStopsAndSaysWhatToDo(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		f.with(func() { f.forgot = true })
		m.run()
		time.Sleep(time.Minute)
		err := m.stop()
		if protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "bivouac-edge join URL CODE") {
			t.Errorf("Run says %v", err)
		}
		if n := get(f, func() int { return len(f.connects) }); n != 0 {
			t.Errorf("%d connects", n)
		}
	})
}

// An offline server is not terminal.
func TestOfflineIsNotTerminal(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		f.stop()
		m.run()
		time.Sleep(2 * time.Hour)
		f.listen()
		m.connected()
	})
}

func TestCertificateIsRenewedAtTwoThirds(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		first := m.daemon.Status().CertificateEnd
		time.Sleep(testLife * 5 / 8)
		if n := get(f, func() int { return f.certs }); n != 0 {
			t.Fatalf("renewed %d times before two thirds of its life", n)
		}
		time.Sleep(testLife / 8)
		if n := get(f, func() int { return f.certs }); n != 1 {
			t.Fatalf("renewed %d times after two thirds", n)
		}
		m.connected()
		if !m.daemon.Status().CertificateEnd.After(first) {
			t.Error("the new certificate is not in use")
		}
		time.Sleep(testLife / 3)
		if !m.daemon.Status().Connected {
			t.Error("after the first certificate's end the runner is gone")
		}
	})
}

func TestPauseDeclinesEndsAndAnnounces(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		turn, later, after := newAttempt(), newAttempt(), newAttempt()
		f.offer(turn, protocol.KindTurn, &runnerv1.Work{})
		m.await("the turn", 10*time.Second, func() bool { return m.twins.get(turn) != nil && m.twins.get(turn).begun != nil })
		if err := m.dir.SetPaused(true); err != nil { // what `pause` does first, without any network
			t.Fatal(err)
		}
		m.await("the end of the turn", 10*time.Second, func() bool { return f.result(turn).GetStatus() == "cancelled" })
		m.await("the announcement", 10*time.Second, func() bool { return get(f, func() bool { return f.facts.GetPaused() }) })
		read := deviceWork(device.Read, map[string]any{"path": "notes/a.txt"})
		f.offer(later, protocol.KindAction, read)
		m.await("the decline", 10*time.Second, func() bool {
			return strings.Contains(get(f, func() string { return f.declined[later.String()] }), "paused")
		})
		if err := m.dir.SetPaused(false); err != nil {
			t.Fatal(err)
		}
		m.await("the announcement", 10*time.Second, func() bool { return get(f, func() bool { return !f.facts.GetPaused() }) })
		f.offer(after, protocol.KindAction, read)
		m.await("the action", 10*time.Second, func() bool { return f.result(after) != nil })
	})
}

// A daemon that died between intent and result inspects, and never repeats
// (INV-4, INV-5).
func TestCrashBetweenIntentAndResultIsInspected(t *testing.T) {
	for name, c := range map[string]struct {
		now    string // content of the file when the daemon comes back
		status string
	}{
		"not done": {"old", device.Failed},
		"done":     {"new", device.Succeeded},
		"unclear":  {"other", device.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
				work := deviceWork(device.Write, map[string]any{"path": "notes/a.txt", "content": "new"})
				work.GetDevice().PreImageDigest = canonical.Digest([]byte("old"))
				id := newAttempt()
				log, err := openActions(m.dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				nonce, err := log.nonce(id)
				if err != nil {
					t.Fatal(err)
				}
				f.with(func() { f.claims[id.String()] = &fakeClaim{nonce: nonce, fence: 1<<32 | 1} })
				if err := log.claimed(&attempt{id: id, fence: 1<<32 | 1}, work.GetDevice(), nil); err != nil {
					t.Fatal(err)
				}
				log.close()
				m.write("a.txt", c.now)
				m.run()
				m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
				if r := f.result(id); r.GetStatus() != c.status {
					t.Errorf("reported as %v, want %s", r, c.status)
				}
				if got := m.read("a.txt"); got != c.now {
					t.Errorf("the file was changed to %q", got)
				}
			})
		})
	}
}

// A device effect whose lease ended meanwhile is refused right before it.
func TestNoEffectWithoutAuthority(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "alpha")
		m.run()
		m.connected()
		id := newAttempt()
		work := deviceWork(device.Write, map[string]any{"path": "notes/new.txt", "content": "late"})
		a := &attempt{id: id, kind: protocol.KindAction, fence: 1<<32 | 1, lease: newTestLease(m)}
		a.grant(0, f.terms(1<<32|1))
		m.daemon.table.add(a)
		if _, err := m.daemon.actions.nonce(id); err != nil {
			t.Fatal(err)
		}
		if err := m.daemon.actions.claimed(a, work.GetDevice(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // far beyond the authority
		m.daemon.startAction(a, work.GetDevice())
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
		if r := f.result(id); r.GetStatus() == device.Succeeded {
			t.Errorf("done without authority: %v", r)
		}
		if _, err := os.Stat(m.notes + "/new.txt"); err == nil {
			t.Error("the file was written")
		}
	})
}

// A full disk declines every offer with the reason, claims nothing, and takes work
// again when there is room.
func TestFullDiskDeclines(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var free atomic.Int64
		free.Store(leastFree - 1)
		m.cfg.FreeFunc = func(string) (int64, error) { return free.Load(), nil }
		m.run()
		m.connected()
		turn, action := newAttempt(), newAttempt()
		f.offer(turn, protocol.KindTurn, &runnerv1.Work{})
		f.offer(action, protocol.KindAction, deviceWork("files.list", map[string]any{"path": "notes"}))
		m.await("the declines", 10*time.Second, func() bool { return get(f, func() bool { return len(f.declined) == 2 }) })
		for _, id := range []protocol.AttemptID{turn, action} {
			if got := get(f, func() string { return f.declined[id.String()] }); !strings.Contains(got, "MiB left") || !strings.Contains(got, m.dir.Path()) {
				t.Errorf("declined: %q", got)
			}
		}
		if left, err := m.dir.Attempts(); err != nil || len(left) != 0 {
			t.Errorf("directories of what was declined: %v %v", left, err)
		}
		if s := m.daemon.Status(); s.Slots != 0 || !strings.Contains(s.SandboxProblem, "MiB left") {
			t.Errorf("a machine with a full disk offers %d slots, problem %q", s.Slots, s.SandboxProblem)
		}
		free.Store(leastFree)
		m.await("its slot again", 2*rulesEvery, func() bool { return m.daemon.Status().Slots == 1 })
		later := newAttempt()
		f.offer(later, protocol.KindAction, deviceWork("files.list", map[string]any{"path": "notes"}))
		m.await("the result", 10*time.Second, func() bool { return f.result(later).GetStatus() == protocol.ResultSucceeded })
	})
}

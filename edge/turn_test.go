package edge

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

func newTestLease(m *machine) *lease.Lease { return lease.NewLease(m.cfg.Elapsed) }

// begun offers a turn and waits until its supervisor has the work.
func (m *machine) begun(w *runnerv1.Work) (protocol.AttemptID, *twin) {
	m.t.Helper()
	id := newAttempt()
	m.server.offer(id, protocol.KindTurn, w)
	m.await("the turn to begin", 10*time.Second, func() bool {
		one := m.twins.get(id)
		return one != nil && one.see(func() bool { return one.begun != nil })
	})
	return id, m.twins.get(id)
}

func TestTurnFromOfferToResult(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		workspace := strings.Repeat("workspace ", 1000)
		digest := canonical.Digest([]byte(workspace))
		f.with(func() { f.blobs[digest] = []byte(workspace) })
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{WorkspaceDigest: digest}}})
		if b, err := os.ReadFile(w.dir.Blob(digest)); err != nil || string(b) != workspace {
			t.Fatalf("the workspace was not staged before Begin: %v", err)
		}
		if w.begun.GetBrokerAddress() != "10.0.0.9:7402" || w.begun.GetTerms().GetCapability() != "cap" || w.begun.GetTerms().GetAuthorityTtlMs() > testTTL.Milliseconds() {
			t.Errorf("begun with %v", w.begun)
		}
		if begin, ok, err := w.dir.Claim(); err != nil || !ok || begin.GetTerms().GetCapability() != "" {
			t.Errorf("the journalled claim holds a capability (INV-17), or is not there: %v %v", ok, err)
		}
		w.journal(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
		f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_ToolAnswer{ToolAnswer: &runnerv1.ToolAnswer{AttemptId: id.String(), CallId: "c1", Result: []byte("r")}}})
		m.await("the tool's answer", 10*time.Second, func() bool { return w.see(func() bool { return slices.Equal(w.answers, []string{"c1=r"}) }) })
		patch := w.patch(t, "diff")
		w.finish(&runnerv1.Result{Status: "succeeded", PatchDigest: patch})
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
		m.await("the cleanup", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
		order := get(f, func() []string { return slices.Clone(f.log) })
		if put, last := slices.Index(order, "put "+patch), len(order)-1; put < 0 || order[last] != "report" || put > last {
			t.Errorf("the patch must be at the server before the record that names it: %v", order)
		}
		if left, err := m.dir.Attempts(); err != nil || len(left) != 0 {
			t.Errorf("directories are left: %v %v (INV-18)", left, err)
		}
		m.await("acknowledgements", 10*time.Second, func() bool { return get(f, func() bool { return f.acked == 2 }) })
	})
}

// Leases are renewed every third of their ttl, and the supervisor gets what is
// left of each (INV-20).
func TestRenewalsComeEveryThirdOfTheTTL(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		_, w := m.begun(&runnerv1.Work{})
		from := get(f, func() int { return len(f.renewals) })
		time.Sleep(time.Minute)
		times := get(f, func() []time.Time { return slices.Clone(f.renewals[from:]) })
		if len(times) < 11 || len(times) > 13 {
			t.Fatalf("%d renewals in a minute, want 12", len(times))
		}
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < testTTL/3 || gap > testTTL/3+100*time.Millisecond {
				t.Errorf("renewal %d came after %v", i, gap)
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.renewed); n < 11 || w.renewed[n-1].GetAuthorityTtlMs() > testTTL.Milliseconds() || w.renewed[n-1].GetCapability() == "" {
			t.Errorf("the supervisor got %d renewals", n)
		}
	})
}

// Cut off from the server, a turn is stopped when its authority ends, its slot
// is free when its retention ends, and neither happens a moment before.
func TestAuthorityAndRetentionEndInTime(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{})
		w.mu.Lock()
		w.obedient = false // no result is made up for what was lost
		w.mu.Unlock()
		time.Sleep(20 * time.Second)
		renewed := get(f, func() time.Time { return f.renewals[len(f.renewals)-1] })
		f.net.Cut(true)
		time.Sleep(testTTL - time.Since(renewed) - time.Second)
		if w.see(func() bool { return w.stopped != "" }) {
			t.Fatal("stopped while it had authority")
		}
		time.Sleep(2*time.Second + watchEvery)
		if !w.see(func() bool { return strings.Contains(w.stopped, "did not renew") }) {
			t.Fatalf("authority ended and nothing was stopped: %q", w.stopped)
		}
		if n := m.daemon.table.active(protocol.KindTurn); n != 1 {
			t.Fatalf("the slot was freed within retention: %d", n)
		}
		time.Sleep(testRetention)
		if n := m.daemon.table.active(protocol.KindTurn); n != 0 {
			t.Errorf("%d slots are taken after retention", n)
		}
		f.net.Cut(false)
		m.await("the end of what was lost", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
		if f.result(id) != nil {
			t.Errorf("a result was made up: %v", f.result(id))
		}
		if left, err := m.dir.Attempts(); err != nil || len(left) != 0 {
			t.Errorf("directories are left: %v %v", left, err)
		}
	})
}

// The link comes back before authority ends: nothing is stopped.
func TestShortCutCostsNothing(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{})
		f.net.Cut(true)
		time.Sleep(6 * time.Second)
		f.net.Cut(false)
		time.Sleep(2 * time.Minute)
		if w.see(func() bool { return w.stopped != "" }) {
			t.Fatalf("stopped: %s", w.stopped)
		}
		w.finish(&runnerv1.Result{Status: "succeeded"})
		m.await("the result", time.Minute, func() bool { return f.result(id).GetStatus() == "succeeded" })
	})
}

func TestServerTakesALeaseBack(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{})
		f.with(func() { f.claims[id.String()].dead = true; f.evidence = true })
		m.await("the stop", 10*time.Second, func() bool { return w.see(func() bool { return strings.Contains(w.stopped, "took the lease") }) })
		m.await("the cleanup", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
	})
}

func TestStopFromTheServerBringsAResult(t *testing.T) {
	for _, obedient := range []bool{true, false} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			id, w := m.begun(&runnerv1.Work{})
			w.mu.Lock()
			w.obedient = obedient
			w.mu.Unlock()
			f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{Stop: &runnerv1.Stop{AttemptId: id.String(), Reason: "the user cancelled"}}})
			m.await("the result", time.Minute, func() bool { return f.result(id).GetStatus() == "cancelled" })
			m.await("the cleanup", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
		})
	}
}

// A daemon that restarts finds the supervisor by its nonce, does not begin the
// work again, and brings home what happened meanwhile.
func TestDaemonRestartReattaches(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{})
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		w.journal(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
		time.Sleep(5 * time.Second)
		m.run()
		m.connected()
		m.await("the records", 10*time.Second, func() bool { return get(f, func() bool { return len(f.reports[id.String()]) == 1 }) })
		if held := get(f, func() []*runnerv1.HeldLease { return f.connects[len(f.connects)-1].GetHeld() }); len(held) != 1 || held[0].GetAttemptId() != id.String() {
			t.Errorf("the new daemon says that it holds %v", held)
		}
		time.Sleep(time.Minute)
		if w.see(func() bool { return w.begins != 1 || w.stopped != "" || len(w.renewed) < 10 }) {
			t.Errorf("begun %d times, stopped %q, renewed %d times", w.begins, w.stopped, len(w.renewed))
		}
		w.finish(&runnerv1.Result{Status: "succeeded"})
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
	})
}

// A missing workspace is a known failure of the turn, not a silent hang.
func TestMissingBlobFailsTheTurn(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		id := newAttempt()
		f.offer(id, protocol.KindTurn, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{WorkspaceDigest: canonical.Digest([]byte("gone"))}}})
		m.await("the result", time.Minute, func() bool { return f.result(id) != nil })
		if r := f.result(id); r.GetStatus() != "failed" || r.GetCode() != string(protocol.CodeNotFound) {
			t.Errorf("%v", r)
		}
		if m.twins.get(id) != nil {
			t.Error("a supervisor was started without its workspace")
		}
	})
}

// A turn that failed inside this machine is told to its owner with the reasons of the
// supervisor, whose log goes with the attempt, until a turn goes well. One that failed
// by its own is none of the machine's trouble.
func TestOwnerHearsOfATurnThatFailedInside(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		for _, c := range []struct {
			result *runnerv1.Result
			want   string
		}{
			{&runnerv1.Result{Status: protocol.ResultFailed, Code: "worker_stalled"}, ""},
			{&runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeInternal), Message: "The runner failed inside."}, `msg="it broke" error=why`},
			{&runnerv1.Result{Status: protocol.ResultSucceeded}, ""},
		} {
			id, w := m.begun(&runnerv1.Work{})
			if err := os.WriteFile(w.dir.Log(), []byte("time=1 level=INFO msg=fine\ntime=2 level=ERROR msg=\"it broke\" error=why\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.finish(c.result)
			m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
			m.await("the cleanup", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
			if got := m.daemon.Status().LastError; (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Contains(got, "fine") {
				t.Errorf("after %v status says %q", c.result, got)
			}
		}
	})
}

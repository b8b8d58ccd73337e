package edge

import (
	"context"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// freezingSandbox is of a machine whose supervisors can hold a turn.
type freezingSandbox struct{ provedSandbox }

func (freezingSandbox) Probe(ctx context.Context) sandbox.Report {
	r := provedSandbox{}.Probe(ctx)
	r.Freezer = "twin"
	return r
}

func frozen(m *machine) bool {
	all := m.daemon.Status().Attempts
	return len(all) == 1 && all[0].State == "frozen" && strings.Contains(all[0].Reason, "goes on")
}

// A machine that can hold a turn keeps it over the end of its authority, asks for
// it again when the link is back, and ends it with its retention. INV-20.
func TestHeldTurn(t *testing.T) {
	lose := func(t *testing.T, f *fakeServer, m *machine) (protocol.AttemptID, *twin) {
		m.cfg.Sandbox = freezingSandbox{}
		m.run()
		m.connected()
		id, w := m.begun(&runnerv1.Work{})
		time.Sleep(20 * time.Second)
		if frozen(m) {
			t.Error("a renewed turn is shown as frozen")
		}
		renewed := get(f, func() time.Time { return f.renewals[len(f.renewals)-1] })
		f.net.Cut(true)
		time.Sleep(testTTL - time.Since(renewed) + 2*watchEvery)
		if !frozen(m) || w.see(func() bool { return w.stopped != "" }) {
			t.Errorf("after the loss: %+v", m.daemon.Status().Attempts)
		}
		return id, w
	}
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		id, w := lose(t, f, m)
		time.Sleep(testRetention / 3)
		f.net.Cut(false)
		m.await("the renewal", time.Minute, func() bool { return !frozen(m) })
		time.Sleep(time.Minute)
		if w.see(func() bool { return w.stopped != "" }) {
			t.Fatalf("stopped: %s", w.stopped)
		}
		w.finish(&runnerv1.Result{Status: "succeeded"})
		m.await("the result", time.Minute, func() bool { return f.result(id).GetStatus() == "succeeded" })
	})
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		id, w := lose(t, f, m)
		w.mu.Lock()
		w.obedient = false
		w.mu.Unlock()
		time.Sleep(testRetention - testTTL)
		if !w.see(func() bool { return strings.Contains(w.stopped, "did not renew") }) {
			t.Fatalf("retention ended and nothing was stopped: %q", w.stopped)
		}
		f.net.Cut(false)
		m.await("the end of what was lost", time.Minute, func() bool { return len(m.daemon.Status().Attempts) == 0 })
		if f.result(id) != nil {
			t.Errorf("a result was made up: %v", f.result(id))
		}
	})
}

package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// A machine's disk is copied, key and all, and started elsewhere while the machine
// runs. One of the two works, the other says why it does not, and they do not take
// turns; the owner is told on both sides. When the one that works is switched off
// the other still does not take its place by itself.
func TestCopiedMachineDoesNotFlap(t *testing.T) {
	harness.Test(t, harness.Options{Script: packing}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		b := w.CopyEdge("a", "b")
		time.Sleep(10 * time.Second)
		connects := func() int { return len(w.Log.Find(harness.Server, "runner connected")) }
		settled := connects()
		time.Sleep(10 * time.Minute)
		if n := connects(); n != settled {
			t.Errorf("%d more connects: the two take turns", n-settled)
		}
		works, other := a, b
		if b.Status().Connected {
			works, other = b, a
		}
		s := other.Status()
		if !works.Status().Connected || s.Connected || !strings.Contains(s.LastError, "another machine") || !strings.Contains(s.LastError, "leave --force") {
			t.Errorf("a is connected: %v, b: %v; the other says %q", a.Status().Connected, b.Status().Connected, s.LastError)
		}
		if p := alice.Runner("a").GetProblem(); !strings.Contains(p, "a second machine with its key") {
			t.Errorf("the owner is told %q", p)
		}
		works.StopDaemon()
		time.Sleep(5 * time.Minute)
		if other.Status().Connected {
			t.Error("the copy took over")
		}
		works.StartDaemon()
		works.AwaitConnected()
	})
}

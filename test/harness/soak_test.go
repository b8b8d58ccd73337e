package harness_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

var soak = flag.Duration("soak", 0, "virtual time of TestSoak; default 2h, and 1h with -short")

// gauge is what may not grow while a system does the same again and again.
type gauge struct {
	at                             time.Duration
	heap                           uint64
	goroutines, descriptors, files int
	journal                        int64
}

func (g gauge) String() string {
	return fmt.Sprintf("after %s: %.1f MiB, %d goroutines, %d descriptors, %d files, journal %d bytes", g.at, float64(g.heap)/(1<<20), g.goroutines, g.descriptors, g.files, g.journal)
}

// measure looks when nothing is under way.
func measure(t *testing.T, at time.Duration, a *harness.Edge, dir string) gauge {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	g := gauge{at: at, heap: m.HeapAlloc, goroutines: runtime.NumGoroutine(), journal: a.Status().JournalBytes}
	if all, err := os.ReadDir("/proc/self/fd"); err == nil {
		g.descriptors = len(all)
	}
	if err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			g.files++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestSoak lets a whole system do its work for hours or, by make soak, for seven
// days of virtual time: turns on a machine, approvals, lost links, restarts of
// every part. Memory, goroutines, descriptors and files stay where they were.
// INV-18. It runs alone: it measures its process.
func TestSoak(t *testing.T) {
	length := *soak
	if length == 0 {
		if length = 2 * time.Hour; testing.Short() {
			length = time.Hour
		}
	}
	harness.Alone(t, harness.Options{Script: packing}, func(t *testing.T, w *harness.World) {
		w.Log.KeepLast(5000)
		alice, a := w.Person("alice"), w.Edge("a")
		a.Write("trip.txt", "Bergen, three days\n")
		alice.Apply(assistant)
		alice.PutCredential(harness.ToolCredential, harness.ToolKey)
		alice.Grant("assistant", harness.ToolCredential)
		began := time.Now()
		every := max(10*time.Minute, length/200) // a week has as many turns as there is real time for
		var seen []gauge
		for n := 0; time.Since(began) < length; n++ {
			session := alice.Open("assistant")
			turn := alice.Submit(session, fmt.Sprint("m", n), "do the packing")
			alice.Decide(alice.AwaitApproval(), true)
			if got := alice.Completed(turn); got.GetAnswer() != "It is written." {
				t.Fatalf("turn %d: %v", n, got)
			}
			if _, err := alice.Sessions.CloseSession(t.Context(), &apiv1.CloseSessionRequest{SessionId: session}); err != nil {
				t.Fatal(err)
			}
			disturb(w, a, n)
			time.Sleep(every)
			if debt := alice.Debt(); len(debt) != 0 {
				t.Fatalf("turn %d: %v is not cleaned up", n, debt)
			}
			if n%2 == 1 {
				seen = append(seen, measure(t, time.Since(began), a, w.Dir()))
			}
		}
		flat(t, seen)
	})
}

// disturb breaks something else each time.
func disturb(w *harness.World, a *harness.Edge, n int) {
	switch n % 12 {
	case 1:
		w.Partition("a")
		time.Sleep(30 * time.Second)
		w.Heal("a")
	case 4:
		w.RestartServer()
	case 7:
		a.StopDaemon()
		a.StartDaemon()
	case 10:
		w.KillBroker()
		w.StartBroker()
	default:
		return
	}
	w.AwaitReady()
	a.AwaitConnected()
}

// flat fails for what grew, and shows some of what was seen.
func flat(t *testing.T, seen []gauge) {
	t.Helper()
	for i := 0; i < len(seen); i += max(1, len(seen)/20) {
		t.Log(seen[i])
	}
	if len(seen) < 2 {
		t.Fatal("too short to compare anything")
	}
	for _, growth := range grown(seen) {
		t.Error(growth)
	}
}

// grown compares the middle of the first quarter with that of the last.
func grown(seen []gauge) (out []string) {
	q := max(1, len(seen)/4)
	middle := func(part []gauge, of func(gauge) float64) float64 {
		all := make([]float64, 0, len(part))
		for _, g := range part {
			all = append(all, of(g))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	for _, c := range []struct {
		name  string
		of    func(gauge) float64
		slack float64
	}{
		{"MiB of memory", func(g gauge) float64 { return float64(g.heap) / (1 << 20) }, 16},
		{"goroutines", func(g gauge) float64 { return float64(g.goroutines) }, 10},
		{"descriptors", func(g gauge) float64 { return float64(g.descriptors) }, 8},
		{"files", func(g gauge) float64 { return float64(g.files) }, 12},
		{"bytes of journal", func(g gauge) float64 { return float64(g.journal) }, 2 << 20},
	} {
		if first, last := middle(seen[:q], c.of), middle(seen[len(seen)-q:], c.of); last > first+c.slack {
			out = append(out, fmt.Sprintf("%.1f %s at first, %.1f at last", first, c.name, last))
		}
	}
	return out
}

// A leak of a few things a turn is seen; noise is not.
func TestGrowthIsSeen(t *testing.T) {
	var steady, leaky []gauge
	for i := range 100 {
		g := gauge{heap: uint64(40+i%7) << 20, goroutines: 130 + i%5, descriptors: 23 + i%3, files: 32, journal: int64(i % 10 * 1000)}
		steady = append(steady, g)
		g.goroutines, g.descriptors, g.heap = g.goroutines+i, g.descriptors+i/4, g.heap+uint64(i)<<18
		leaky = append(leaky, g)
	}
	if got := grown(steady); got != nil {
		t.Errorf("a steady system grew: %v", got)
	}
	if got := grown(leaky); len(got) != 3 {
		t.Errorf("a leaky one grew by %v", got)
	}
}

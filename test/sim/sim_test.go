package sim

import (
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bivouac/server/planted"
)

var (
	seeds = flag.Int("seeds", 10, "how many seeds TestSeeds plays")
	first = flag.Uint64("first", 1, "the first of them")
	only  = flag.Uint64("seed", 0, "play this seed alone, and print its whole trace with -v")
	until = flag.Bool("all", false, "go on after a violation")
)

// TestMain spares the collector: a seed lives for a second and holds little.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// play runs one seed in a bubble of its own.
func play(t *testing.T, seed uint64) (r *Result) {
	t.Helper()
	dir := scratch(t)
	synctest.Test(t, func(*testing.T) { r = Run(seed, dir) })
	return r
}

// scratch is an empty directory, in memory where the system has one.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bivouac-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// lastSteps of a trace are printed with a violation.
const lastSteps = 80

func report(t *testing.T, r *Result) {
	t.Helper()
	if r.Violation == "" {
		return
	}
	if again := play(t, r.Seed); again.Digest() != r.Digest() {
		t.Errorf("seed %d does not replay: its trace is %s, and then %s", r.Seed, r.Digest(), again.Digest())
	}
	tail := r.Trace[max(0, len(r.Trace)-lastSteps):]
	t.Errorf("seed %d (%s), after %s, %d events and %d faults: %s\nthe last steps:\n%s\nreplay: go test ./test/sim -run TestSeeds -seed %d -v",
		r.Seed, r.Kind, r.Virtual, r.Events, r.FaultCount(), r.Violation, strings.Join(tail, "\n"), r.Seed)
}

// keep writes down a seed that found something, for TestKeptSeeds to play from now
// on. A tree that cannot be written keeps none.
func keep(t *testing.T, r *Result) {
	if r.Violation == "" || tagged || planted.Chosen != planted.None {
		return
	}
	name := filepath.Join("testdata", "seeds", strconv.FormatUint(r.Seed, 10)+"-found")
	if err := os.WriteFile(name, []byte(strings.TrimSpace(r.Violation)+"\n"), 0o644); err != nil {
		t.Logf("seed %d is not kept: %v", r.Seed, err)
	}
}

// TestSeeds plays many seeds. Each is at least 500 events with at least 5 faults,
// and after every step of it hold INV-1 to INV-10, INV-13 to INV-16, INV-18 to INV-20.
func TestSeeds(t *testing.T) {
	if *only != 0 {
		r := play(t, *only)
		t.Log("\n" + strings.Join(r.Trace, "\n"))
		report(t, r)
		return
	}
	var next atomic.Uint64
	next.Store(*first - 1)
	results := make([]*Result, *seeds)
	t.Run("", func(t *testing.T) {
		for range min(*seeds, runtime.GOMAXPROCS(0)) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed := next.Add(1); seed < *first+uint64(*seeds); seed = next.Add(1) {
					r := play(t, seed)
					report(t, r)
					keep(t, r)
					r.Trace = nil
					results[seed-*first] = r
					if r.Violation != "" && !*until {
						next.Store(*first + uint64(*seeds))
					}
				}
			})
		}
	})
	summarize(t, results)
}

// summarize says what the seeds came to see.
func summarize(t *testing.T, results []*Result) {
	turns, labels, killed, faults, owned := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	n, steps, events, effects, unknown := 0, 0, 0, 0, 0
	least, fewest := math.MaxInt, math.MaxInt
	for _, r := range results {
		if r == nil {
			continue
		}
		n, steps, events, effects, unknown = n+1, steps+r.Steps, events+r.Events, effects+r.Effects, unknown+r.Unknown
		if r.Violation == "" && (r.Events < leastEvents || r.FaultCount() < leastFaults) {
			t.Errorf("seed %d is clean after %d events and %d faults: it must see %d and %d", r.Seed, r.Events, r.FaultCount(), leastEvents, leastFaults)
		}
		for k, v := range r.Faults {
			faults[k] += v
		}
		least, fewest = min(least, r.Events), min(fewest, r.FaultCount())
		for k, v := range r.Turns {
			turns[k] += v
		}
		for k, v := range r.Owner {
			owned[k] += v
		}
		for k, v := range r.Labels {
			labels[string(k)] += v
		}
		for k, v := range r.Killed {
			killed[string(k)] += v
		}
	}
	t.Logf("seeds=%d steps=%d events=%d (at least %d a seed) faults=%d (at least %d a seed) effects=%d unknown=%d",
		n, steps, events, least, countFaults(faults), fewest, effects, unknown)
	for _, k := range slices.Sorted(maps.Keys(faults)) {
		t.Logf("fault %-40s %d", k, faults[k])
	}
	for _, k := range slices.Sorted(maps.Keys(turns)) {
		t.Logf("turns %-40s %d", k, turns[k])
	}
	for _, k := range slices.Sorted(maps.Keys(owned)) {
		t.Logf("owner %-40s %d", k, owned[k])
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		t.Logf("label %-40s reached %d, killed %d", k, labels[k], killed[k])
		if killed[k] == 0 && n >= enough {
			t.Errorf("in %d seeds nobody was killed at %s", n, k)
		}
	}
}

// enough seeds kill somebody at every labelled step.
const enough = 1000

// TestReplay plays seeds twice: the same seed gives the same trace, line by line.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		a, b := play(t, seed), play(t, seed)
		if a.Digest() == b.Digest() {
			continue
		}
		for i := range min(len(a.Trace), len(b.Trace)) {
			if a.Trace[i] != b.Trace[i] {
				t.Fatalf("seed %d, line %d:\n%s\n%s", seed, i, a.Trace[i], b.Trace[i])
			}
		}
		t.Fatalf("seed %d: %d lines, then %d", seed, len(a.Trace), len(b.Trace))
	}
}

// TestKeptSeeds plays the seeds that once found something.
func TestKeptSeeds(t *testing.T) {
	files, err := filepath.Glob("testdata/seeds/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no kept seeds: %v", err)
	}
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), "-")
		seed, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			t.Errorf("%s: its name must begin with the seed: %v", f, err)
			continue
		}
		report(t, play(t, seed))
	}
}

package execution

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/steptable"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// check holds one table to what every table promises: its whole matrix as a
// golden, every state reached, no exit from a terminal state, an end from every
// state, and a Step that makes exactly these steps. INV-2.
func check[S, E ~string](t *testing.T, name string, table map[S]map[E]S, states []S, events []E,
	terminal func(S) bool, step func(S, E) (S, error), first S) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	got := steptable.Matrix(table, states, events)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		t.Errorf("%s: the matrix differs from %s (%v); it is now:\n%s", name, path, err, got)
	}
	if len(states) != len(table) {
		t.Errorf("%s: %d states are listed and %d are in the table", name, len(states), len(table))
	}
	reached := steptable.Reachable(table, first)
	for _, s := range states {
		if exits := len(table[s]); (exits == 0) != terminal(s) || !reached[s] {
			t.Errorf("%s: %s has %d exits, terminal %t, reached %t", name, s, exits, terminal(s), reached[s])
		}
		ends := steptable.Reachable(table, s)
		if !slices.ContainsFunc(states, func(e S) bool { return ends[e] && terminal(e) }) {
			t.Errorf("%s: no end is reached from %s", name, s)
		}
		for ev := range table[s] {
			if !slices.Contains(events, ev) {
				t.Errorf("%s: the event %s is not listed", name, ev)
			}
		}
		for _, ev := range events {
			to, err := step(s, ev)
			want, legal := table[s][ev]
			if !legal {
				want = s
			}
			if to != want || (err == nil) != legal || !legal && protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
				t.Errorf("%s: %s --%s--> %s, %v; the table says %s", name, s, ev, to, err, want)
			}
		}
	}
}

func TestMachines(t *testing.T) {
	check(t, "attempt", AttemptNext, AttemptStates, AttemptEvents, AttemptState.Terminal,
		func(s AttemptState, ev AttemptEvent) (AttemptState, error) {
			next, err := Attempt{State: s}.Step(ev, now)
			return next.State, err
		}, AttemptQueued)
	check(t, "runner", RunnerNext, RunnerStates, RunnerEvents, RunnerState.Terminal,
		func(s RunnerState, ev RunnerEvent) (RunnerState, error) {
			next, err := Runner{State: s}.Step(ev, now)
			return next.State, err
		}, RunnerActive)
}

// TestHeld: the held states are those after a claim and before an end.
func TestHeld(t *testing.T) {
	after := steptable.Reachable(AttemptNext, AttemptClaimed)
	for _, s := range AttemptStates {
		if want := after[s] && !s.Terminal(); s.Held() != want {
			t.Errorf("%s held is %t", s, s.Held())
		}
	}
	if after[AttemptQueued] || after[AttemptOffered] {
		t.Error("a claimed attempt can be offered again")
	}
}

func TestMermaidHasEveryTable(t *testing.T) {
	drawn := Mermaid()
	for _, name := range []string{"attempt", "runner"} {
		if len(drawn[name]) < 80 {
			t.Errorf("the diagram of %s is %q", name, drawn[name])
		}
	}
}

package session

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/steptable"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// check holds one table to what every table promises: its whole matrix as a
// golden, every state reached, no exit from a terminal state and an exit from
// every other. INV-2.
func check[S, E ~string](t *testing.T, name string, table map[S]map[E]S, states []S, events []E, terminal func(S) bool, first ...S) {
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
	reached := steptable.Reachable(table, first...)
	used := map[E]bool{}
	for _, s := range states {
		if !reached[s] {
			t.Errorf("%s: nothing leads to %s", name, s)
		}
		if exits := len(table[s]); (exits == 0) != terminal(s) {
			t.Errorf("%s: %s has %d exits and terminal is %t", name, s, exits, terminal(s))
		}
		ends := steptable.Reachable(table, s)
		if !slices.ContainsFunc(states, func(e S) bool { return ends[e] && terminal(e) }) {
			t.Errorf("%s: no end is reached from %s", name, s)
		}
		for ev, to := range table[s] {
			used[ev] = true
			if !slices.Contains(events, ev) || !slices.Contains(states, to) {
				t.Errorf("%s: %s --%s--> %s is not listed", name, s, ev, to)
			}
		}
	}
	for _, ev := range events {
		if !used[ev] {
			t.Errorf("%s: the event %s is never legal", name, ev)
		}
	}
}

func TestMachines(t *testing.T) {
	check(t, "session", SessionNext, States, SessionEvents, State.Terminal, Open)
	check(t, "turn", TurnNext, TurnStates, TurnEvents, TurnState.Terminal, Queued)
	check(t, "action", ActionNext, ActionStates, ActionEvents, ActionState.Terminal, Intended)
	check(t, "approval", ApprovalNext, ApprovalStates, ApprovalEvents, ApprovalState.Terminal, ApprovalPending)
}

// TestStepAgreesWithTheTable: each Step makes exactly the steps of its table.
func TestStepAgreesWithTheTable(t *testing.T) {
	agree(t, SessionNext, States, SessionEvents, func(s State, ev SessionEvent) (State, error) {
		next, err := Session{State: s}.Step(ev, now)
		return next.State, err
	})
	agree(t, TurnNext, TurnStates, TurnEvents, func(s TurnState, ev TurnEvent) (TurnState, error) {
		next, err := Turn{State: s}.Step(ev, now)
		return next.State, err
	})
	agree(t, ActionNext, ActionStates, ActionEvents, func(s ActionState, ev ActionEvent) (ActionState, error) {
		next, err := Action{State: s, Recovery: runtimev1.Recovery_RECOVERY_IDEMPOTENT}.Step(ev, now)
		return next.State, err
	})
	agree(t, ApprovalNext, ApprovalStates, ApprovalEvents, func(s ApprovalState, ev ApprovalEvent) (ApprovalState, error) {
		next, err := Approval{State: s, ExpiresAt: now.Add(time.Minute)}.Step(ev, now)
		return next.State, err
	})
}

func agree[S, E ~string](t *testing.T, table map[S]map[E]S, states []S, events []E, step func(S, E) (S, error)) {
	t.Helper()
	for _, s := range states {
		for _, ev := range events {
			got, err := step(s, ev)
			want, legal := table[s][ev]
			if !legal {
				want = s
			}
			if got != want || (err == nil) != legal || !legal && protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
				t.Errorf("%s --%s--> %s, %v; the table says %s, legal %t", s, ev, got, err, want, legal)
			}
		}
	}
}

func TestMermaidHasEveryTable(t *testing.T) {
	drawn := Mermaid()
	for _, name := range []string{"session", "turn", "action", "approval"} {
		if len(drawn[name]) < 100 {
			t.Errorf("the diagram of %s is %q", name, drawn[name])
		}
	}
}

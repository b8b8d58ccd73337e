package store

import (
	"context"
	"slices"
	"strings"
	"testing"

	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/steptable"
)

// first are the states in which a row may begin. An action may be stored as one
// that waits or that was refused; never as one that was dispatched. INV-4.
var firstStates = []string{
	"session →OPEN", "turn →QUEUED", "approval →PENDING", "attempt →QUEUED", "runner →ACTIVE",
	"action →INTENDED", "action →AWAITING_APPROVAL", "action →DENIED",
}

// The database holds exactly the steps of the Go tables. INV-2.
func TestLegalStepsAreThoseOfTheTables(t *testing.T) {
	want := slices.Clone(firstStates)
	want = append(want, pairs("session", session.SessionNext)...)
	want = append(want, pairs("turn", session.TurnNext)...)
	want = append(want, pairs("action", session.ActionNext)...)
	want = append(want, pairs("approval", session.ApprovalNext)...)
	want = append(want, pairs("attempt", execution.AttemptNext)...)
	want = append(want, pairs("runner", execution.RunnerNext)...)

	s := openAt(t, t.TempDir())
	rows, err := s.sqlite().readers.QueryContext(context.Background(), `SELECT machine, prior, next FROM legal_steps`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var m, prior, next string
		if err := rows.Scan(&m, &prior, &next); err != nil {
			t.Fatal(err)
		}
		got = append(got, m+" "+prior+"→"+next)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, step := range want {
		if !slices.Contains(got, step) {
			t.Errorf("the database refuses %s: add a migration", step)
		}
	}
	for _, step := range got {
		if !slices.Contains(want, step) {
			t.Errorf("the database allows %s, which no table has", step)
		}
	}
}

func pairs[S, E ~string](name string, table steptable.Table[S, E]) (out []string) {
	for _, p := range steptable.Pairs(table) {
		out = append(out, name+" "+string(p.Prior)+"→"+string(p.Next))
	}
	return out
}

// The states that SQL texts name are those of the Go predicates. INV-1.
func TestStateListsAreThoseOfThePredicates(t *testing.T) {
	var active, held []string
	for _, st := range session.TurnStates {
		if st.Active() {
			active = append(active, "'"+string(st)+"'")
		}
	}
	for _, st := range execution.AttemptStates {
		if !st.Terminal() {
			held = append(held, "'"+string(st)+"'")
		}
	}
	for list, want := range map[string][]string{activeStates: active, heldStates: held} {
		got := strings.Split(strings.Trim(list, "()"), ", ")
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("SQL says %v, Go says %v", got, want)
		}
	}
}

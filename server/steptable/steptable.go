// Package steptable holds what every step table of the server shares: the lookup
// with its refusal, the legal pairs that the database repeats, reachability and
// the Mermaid drawing of ARCHITECTURE.md. A table is the whole life of one kind
// of record: state × event → state, and an absent pair is illegal.
//
// It guarantees one wording for every illegal step. It refuses to know any
// state, clock or record; packages session and execution own those.
package steptable

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// Table is the whole life of one kind of record.
type Table[S, E ~string] = map[S]map[E]S

// Next is the one legal step, or a failed_precondition that names both.
func Next[S, E ~string](what string, t Table[S, E], from S, ev E) (S, error) {
	to, ok := t[from][ev]
	if !ok {
		return from, protocol.Errorf(protocol.CodeFailedPrecondition,
			"%s in state %s cannot take the step %q", what, from, ev)
	}
	return to, nil
}

// Pair is a legal change of state; the database holds the same pairs.
type Pair[S ~string] struct{ Prior, Next S }

// Pairs lists every legal (prior, next) once, sorted. Steps that keep the state
// are included.
func Pairs[S, E ~string](t Table[S, E]) []Pair[S] {
	var out []Pair[S]
	for from, row := range t {
		for _, to := range row {
			out = append(out, Pair[S]{from, to})
		}
	}
	slices.SortFunc(out, func(a, b Pair[S]) int {
		return cmp.Or(cmp.Compare(a.Prior, b.Prior), cmp.Compare(a.Next, b.Next))
	})
	return slices.Compact(out)
}

// Reachable lists the states that the given first states lead to, themselves
// included.
func Reachable[S, E ~string](t Table[S, E], first ...S) map[S]bool {
	seen := map[S]bool{}
	todo := slices.Clone(first)
	for len(todo) > 0 {
		s := todo[0]
		todo = todo[1:]
		if seen[s] {
			continue
		}
		seen[s] = true
		for _, to := range t[s] {
			todo = append(todo, to)
		}
	}
	return seen
}

// Mermaid draws a table as a state diagram. Order fixes the order of the
// drawing; first are the states in which a record is made.
func Mermaid[S, E ~string](t Table[S, E], order []S, first ...S) string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for _, s := range first {
		fmt.Fprintf(&b, "    [*] --> %s\n", s)
	}
	for _, from := range order {
		byNext := map[S][]string{}
		for ev, to := range t[from] {
			byNext[to] = append(byNext[to], string(ev))
		}
		for _, to := range order {
			if evs := byNext[to]; len(evs) > 0 {
				slices.Sort(evs)
				fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, strings.Join(evs, ", "))
			}
		}
		if len(t[from]) == 0 {
			fmt.Fprintf(&b, "    %s --> [*]\n", from)
		}
	}
	return b.String()
}

// Matrix renders every state × event as text, one line a pair, for goldens.
func Matrix[S, E ~string](t Table[S, E], states []S, events []E) string {
	var b strings.Builder
	for _, s := range states {
		for _, ev := range events {
			to, ok := t[s][ev]
			if !ok {
				to = "-"
			}
			fmt.Fprintf(&b, "%-24s %-16s %s\n", s, ev, to)
		}
	}
	return b.String()
}

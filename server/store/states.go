package store

import (
	"cmp"
	"slices"
	"time"
)

// merged reads the oldest rows of several states: one statement a state, so that
// each is answered by the index of that state.
func merged[S ~string, T any](limit int, states []S, read func(S, int) ([]T, error), order func(a, b T) int) ([]T, error) {
	var out []T
	for _, s := range states {
		rows, err := read(s, limit)
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	if len(states) > 1 {
		slices.SortStableFunc(out, order)
	}
	return out[:min(limit, len(out))], nil
}

// earlier orders by instant, then by id.
func earlier(a, b time.Time, idA, idB string) int {
	return cmp.Or(a.Compare(b), cmp.Compare(idA, idB))
}

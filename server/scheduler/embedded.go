// Package scheduler has the embedded scheduler: it offers attempts straight to
// connected runners with free slots. Nomad is the other implementation of the
// same port; schedulertest holds both to the same promises.
//
// It guarantees a decision for every attempt, that no runner is given more turns
// than it has slots, that tenants and the principals within them take turns, and
// that nothing weaker than asked is chosen (INV-11). It refuses to remember
// anything: the database is the queue.
package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// Embedded offers straight to the connected fleet. Its zero value works.
type Embedded struct{}

// Place decides about each attempt once, in the order in which it was served.
func (Embedded) Place(attempts []execution.Attempt, fleet placement.Fleet) []placement.Decision {
	busy := maps.Clone(fleet.Busy)
	if busy == nil {
		busy = map[protocol.RunnerID]int{}
	}
	acting := maps.Clone(fleet.Acting)
	if acting == nil {
		acting = map[protocol.RunnerID]int{}
	}
	fleet.Busy, fleet.Acting = busy, acting
	out := make([]placement.Decision, 0, len(attempts))
	for _, a := range fair(attempts, fleet) {
		d := placement.Decision{Attempt: a.ID}
		if a.State != execution.AttemptQueued {
			d.Reason = "it is not queued: " + string(a.State)
			out = append(out, d)
			continue
		}
		ranking := placement.Rank(a, fleet)
		if len(ranking.Candidates) == 0 {
			d.Reason = ranking.Summary()
			out = append(out, d)
			continue
		}
		d.Runner = ranking.Candidates[0]
		if a.SubjectKind == execution.SubjectTurn {
			busy[d.Runner]++
			if a.Requirements.Allocation {
				fleet.Allocations.Taken++
			}
		} else {
			acting[d.Runner]++
		}
		out = append(out, d)
	}
	return out
}

// fair orders attempts so that tenants take turns, the one with the fewest busy
// slots first, and so do principals within a tenant; each keeps its own order.
func fair(attempts []execution.Attempt, fleet placement.Fleet) []execution.Attempt {
	held := map[protocol.TenantID]int{}
	for _, r := range fleet.Runners {
		held[r.Tenant] += fleet.Busy[r.ID]
	}
	tenants := group(attempts, func(a execution.Attempt) protocol.TenantID { return a.Tenant })
	slices.SortStableFunc(tenants, func(x, y []execution.Attempt) int {
		return cmp.Compare(held[x[0].Tenant], held[y[0].Tenant])
	})
	for i, t := range tenants {
		tenants[i] = roundRobin(group(t, func(a execution.Attempt) protocol.PrincipalID { return a.Principal }))
	}
	return roundRobin(tenants)
}

// group splits by key; groups and members keep the order of first appearance.
func group[K comparable](attempts []execution.Attempt, key func(execution.Attempt) K) [][]execution.Attempt {
	at := map[K]int{}
	var out [][]execution.Attempt
	for _, a := range attempts {
		i, ok := at[key(a)]
		if !ok {
			i = len(out)
			at[key(a)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], a)
	}
	return out
}

func roundRobin(groups [][]execution.Attempt) []execution.Attempt {
	var out []execution.Attempt
	for i := 0; ; i++ {
		took := false
		for _, g := range groups {
			if i < len(g) {
				out = append(out, g[i])
				took = true
			}
		}
		if !took {
			return out
		}
	}
}

package scheduler_test

import (
	"slices"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/scheduler"
	"bivouac/server/scheduler/schedulertest"
)

// allocated is the scheduler where another one runs every machine, and starts every turn
// as a task of its own.
type allocated struct{ placement.Allocations }

func (s allocated) Place(attempts []execution.Attempt, f placement.Fleet) []placement.Decision {
	if f.Allocations.Most > 0 { // the test says itself what there is
		return scheduler.Embedded{}.Place(attempts, f)
	}
	f.Allocations = s.Allocations
	attempts, f.Runners = slices.Clone(attempts), slices.Clone(f.Runners)
	for i := range attempts {
		attempts[i].Requirements.Allocation = attempts[i].SubjectKind == execution.SubjectTurn
	}
	f.Hosts = map[protocol.RunnerID]placement.Host{}
	for i, r := range f.Runners {
		f.Runners[i].Workload, f.Runners[i].Facts.Allocations = "agents/bivouac-runner/edge/"+r.ID.String(), true
		f.Hosts[r.ID] = placement.Host{Pool: "agents", Most: schedulertest.Room, Largest: schedulertest.Room}
	}
	return scheduler.Embedded{}.Place(attempts, f)
}

// What every scheduler promises holds for turns with allocations of their own too.
func TestAllocated(t *testing.T) {
	schedulertest.Run(t, allocated{placement.Allocations{Most: 50}})
}

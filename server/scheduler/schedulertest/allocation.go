package schedulertest

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// Room is what the node of a Hosted has.
var Room = execution.Resources{CPUMillis: 4000, MemoryBytes: 8 << 30, DiskBytes: 64 << 30}

// Hosted is a runner as another scheduler runs it, which starts allocations on its node.
func Hosted(n int, tenant protocol.TenantID, owner protocol.PrincipalID, f *placement.Fleet) execution.Runner {
	r := Runner(n, tenant, owner, f)
	r.Workload, r.Facts.Allocations = "agents/bivouac-runner/edge/"+r.ID.String(), true
	f.Runners[len(f.Runners)-1] = r
	if f.Hosts == nil {
		f.Hosts = map[protocol.RunnerID]placement.Host{}
	}
	f.Hosts[r.ID] = placement.Host{Pool: "agents", Most: Room, Largest: Room}
	return r
}

// Own is a queued attempt of a turn that needs an allocation of its own.
func Own(n int, tenant protocol.TenantID, p protocol.PrincipalID) execution.Attempt {
	a := Turn(n, tenant, p)
	a.Requirements.Allocation = true
	return a
}

// allocations are bounded for all runners together, whoever has slots left; what shares a
// runner's own is not counted with them.
func allocations(t *testing.T, s Scheduler) {
	f := Fleet()
	var attempts []execution.Attempt
	for tenant := range 4 {
		r := Hosted(tenant, Tenant(tenant), Principal(tenant), &f)
		f.Runners[tenant].Facts.Slots = 10
		f.Busy[r.ID] = 0
		for n := range 5 {
			attempts = append(attempts, Own(10*tenant+n, Tenant(tenant), Principal(tenant)))
		}
		attempts = append(attempts, Turn(10*tenant+9, Tenant(tenant), Principal(tenant)))
	}
	f.Allocations = placement.Allocations{Most: 9, Taken: 1}
	own, shared, of := 0, 0, map[protocol.TenantID]int{}
	got := decide(t, s, attempts, f)
	for _, a := range attempts {
		switch placed := got[a.ID].Runner != ""; {
		case placed && a.Requirements.Allocation:
			own++
			of[a.Tenant]++
		case placed:
			shared++
		}
	}
	if own != 8 || shared != 4 {
		t.Errorf("%d allocations were given of the 8 that were left, and %d of 4 turns that need none", own, shared)
	}
	for tenant, n := range of {
		if n != 2 {
			t.Errorf("tenant %s got %d of 8 allocations among 4 tenants", tenant, n)
		}
	}
}

// tooLarge: what a node could never hold is not put there and takes nothing from what fits.
func tooLarge(t *testing.T, s Scheduler) {
	f := Fleet()
	r := Hosted(1, Tenant(1), Principal(1), &f)
	f.Allocations = placement.Allocations{Most: 1}
	large, fits := Own(1, Tenant(1), Principal(1)), Own(2, Tenant(1), Principal(1))
	fits.Requirements.Resources = Room
	for name, grow := range map[string]func(*execution.Resources){
		"memory": func(q *execution.Resources) { q.MemoryBytes++ },
		"cpu":    func(q *execution.Resources) { q.CPUMillis++ },
		"disk":   func(q *execution.Resources) { q.DiskBytes++ },
	} {
		large.Requirements.Resources = Room
		grow(&large.Requirements.Resources)
		got := decide(t, s, []execution.Attempt{large, fits}, f)
		if got[large.ID].Runner != "" || !strings.Contains(got[large.ID].Reason, "the largest node of pool agents has") || got[fits.ID].Runner != r.ID {
			t.Errorf("%s: %+v, and what fits: %+v", name, got[large.ID], got[fits.ID])
		}
	}
	f.Hosts[r.ID] = placement.Host{}
	if got := decide(t, s, []execution.Attempt{fits}, f)[fits.ID]; got.Runner != "" {
		t.Errorf("nobody knows what its node has: %+v", got)
	}
}

// noAllocation is INV-11: a runner that can only share its own is not taken.
func noAllocation(t *testing.T, s Scheduler) {
	f := Fleet()
	Runner(1, Tenant(1), Principal(1), &f)
	f.Allocations = placement.Allocations{Most: 9}
	own := Own(1, Tenant(1), Principal(1))
	if got := decide(t, s, []execution.Attempt{own}, f)[own.ID]; got.Runner != "" {
		t.Errorf("it shares a runner's own: %+v", got)
	}
	hosted := Hosted(2, Tenant(1), Principal(1), &f)
	if got := decide(t, s, []execution.Attempt{own}, f)[own.ID]; got.Runner != hosted.ID {
		t.Errorf("the runner that has it: %+v", got)
	}
}

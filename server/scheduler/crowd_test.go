package scheduler_test

import (
	"slices"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/scheduler"
	"bivouac/server/scheduler/schedulertest"
)

// A thousand turns of ten tenants, each with an allocation of its own, are queued at once;
// one tenant has more than half of them, and came first. Another scheduler never has more
// than the cap, which is used, and nobody waits more than twice the time that an equal
// share of the cap would take. Time is counted in rounds of one second: it is the same
// every time.
func TestCrowdOfAllocations(t *testing.T) {
	const tenants, hog, others, most, work = 10, 550, 50, 50, 10
	f := schedulertest.Fleet()
	f.Allocations.Most = most
	var queued []execution.Attempt
	for i := range tenants {
		schedulertest.Hosted(i, schedulertest.Tenant(i), schedulertest.Principal(i), &f)
		f.Runners[i].Facts.Slots = most
		turns := others
		if i == 0 {
			turns = hog
		}
		for n := range turns {
			queued = append(queued, schedulertest.Own(1000*i+n, schedulertest.Tenant(i), schedulertest.Principal(i)))
		}
	}
	if len(queued) != 1000 {
		t.Fatalf("%d turns", len(queued))
	}
	type running struct {
		on   protocol.RunnerID
		ends int
	}
	var jobs []running
	begun := map[protocol.TenantID][]int{}
	peak, idle := 0, 0
	for second := 0; len(queued) > 0; second++ {
		if second > 100*work {
			t.Fatalf("%d turns are never placed", len(queued))
		}
		f.Busy = map[protocol.RunnerID]int{}
		jobs = slices.DeleteFunc(jobs, func(r running) bool { return r.ends <= second })
		for _, r := range jobs {
			f.Busy[r.on]++
		}
		f.Allocations.Taken = len(jobs)
		placed := map[protocol.AttemptID]bool{}
		for _, d := range (scheduler.Embedded{}).Place(queued, f) {
			if d.Runner != "" {
				placed[d.Attempt] = true
				jobs = append(jobs, running{d.Runner, second + work + second%3}) // not all at the same time
			}
		}
		for _, a := range queued {
			if placed[a.ID] {
				begun[a.Tenant] = append(begun[a.Tenant], second)
			}
		}
		queued = slices.DeleteFunc(queued, func(a execution.Attempt) bool { return placed[a.ID] })
		if peak = max(peak, len(jobs)); len(jobs) < most && len(queued) > 0 {
			idle++
		}
	}
	if peak != most || idle > 0 {
		t.Errorf("at most %d ran at once of %d that may; in %d seconds less than might", peak, most, idle)
	}
	for i := range tenants {
		worst := 0.0
		for k, second := range begun[schedulertest.Tenant(i)] {
			fair := (k/(most/tenants) + 1) * (work + 2)
			if worst = max(worst, float64(second)/float64(fair)); second > 2*fair {
				t.Errorf("tenant %d: turn %d began after %ds, and its share is %ds", i, k, second, fair)
				break
			}
		}
		t.Logf("bench name=allocation_wait_over_share_tenant_%d value=%.2f unit=times", i, worst)
	}
}

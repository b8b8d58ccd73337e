// Package schedulertest holds what every scheduler promises, as one suite that
// each implementation runs. It owns no scheduler; it makes small fleets and
// looks at the decisions.
package schedulertest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// Scheduler is the port under test.
type Scheduler interface {
	Place(attempts []execution.Attempt, fleet placement.Fleet) []placement.Decision
}

// Run holds a scheduler to its promises.
func Run(t *testing.T, scheduler Scheduler) {
	for name, test := range map[string]func(*testing.T, Scheduler){
		"decides about every attempt once":        everyAttemptOnce,
		"takes a fitting runner, no other":        fitting,
		"never falls back to a weaker runner":     neverWeaker,
		"keeps tenants apart":                     tenantsApart,
		"never overbooks a runner":                slots,
		"gives device actions no slot":            deviceActions,
		"lets tenants and principals take turns":  fair,
		"is a function of what it is given":       repeatable,
		"bounds allocations of all runners":       allocations,
		"never shares an allocation instead":      noAllocation,
		"puts nothing on a node too small for it": tooLarge,
	} {
		t.Run(name, func(t *testing.T) { test(t, scheduler) })
	}
}

var seen = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// Runner is a connected, idle, strong runner that its owner may use for turns
// and files.
func Runner(n int, tenant protocol.TenantID, owner protocol.PrincipalID, f *placement.Fleet) execution.Runner {
	r := execution.Runner{
		ID: id[protocol.RunnerID]("run", n), Tenant: tenant, Owner: owner, Name: fmt.Sprintf("runner-%d", n),
		State: execution.RunnerActive, LastSeenAt: seen,
		Facts: execution.Facts{OS: "linux", Arch: "amd64", Slots: 1, Boundary: "process", Limits: "cgroup",
			Actions: []string{"files.list", "files.read"}, Adapters: []string{"native"},
			Harnesses: []execution.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}},
	}
	f.Runners = append(f.Runners, r)
	f.Connections[r.ID] = execution.Connection{Runner: r.ID, Epoch: 1}
	f.Bindings = append(f.Bindings, execution.Binding{ID: id[protocol.BindingID]("bnd", n), Tenant: tenant, Principal: owner, Runner: r.ID})
	return r
}

// Turn is a queued attempt of a whole turn over untrusted code.
func Turn(n int, tenant protocol.TenantID, p protocol.PrincipalID) execution.Attempt {
	return execution.Attempt{
		ID: id[protocol.AttemptID]("att", n), Tenant: tenant, Principal: p, State: execution.AttemptQueued,
		SubjectKind: execution.SubjectTurn, Number: 1,
		Requirements: execution.Requirements{Boundary: "process", Trust: "untrusted", Adapter: "native"},
	}
}

// Action is a queued attempt of one device action.
func Action(n int, tenant protocol.TenantID, p protocol.PrincipalID, action string) execution.Attempt {
	a := Turn(n, tenant, p)
	a.SubjectKind = execution.SubjectAction
	a.Requirements = execution.Requirements{Action: action}
	return a
}

// Fleet is an empty one.
func Fleet() placement.Fleet {
	return placement.Fleet{
		Connections: map[protocol.RunnerID]execution.Connection{}, Busy: map[protocol.RunnerID]int{},
	}
}

// Tenant and Principal make ids that sort by n.
func Tenant(n int) protocol.TenantID       { return id[protocol.TenantID]("ten", n) }
func Principal(n int) protocol.PrincipalID { return id[protocol.PrincipalID]("prn", n) }

func id[T ~string](prefix string, n int) T { return T(fmt.Sprintf("%s_%026d", prefix, n)) }

func decide(t *testing.T, s Scheduler, a []execution.Attempt, f placement.Fleet) map[protocol.AttemptID]placement.Decision {
	t.Helper()
	out := map[protocol.AttemptID]placement.Decision{}
	for _, d := range s.Place(a, f) {
		if _, twice := out[d.Attempt]; twice {
			t.Errorf("attempt %s was decided twice", d.Attempt)
		}
		if (d.Runner == "") == (d.Reason == "") {
			t.Errorf("decision %+v must have exactly one of runner and reason", d)
		}
		out[d.Attempt] = d
	}
	if len(out) != len(a) {
		t.Errorf("%d of %d attempts were decided", len(out), len(a))
	}
	return out
}

func everyAttemptOnce(t *testing.T, s Scheduler) {
	f := Fleet()
	Runner(1, Tenant(1), Principal(1), &f)
	ended := Turn(3, Tenant(1), Principal(1))
	ended.State = execution.AttemptCancelled
	attempts := []execution.Attempt{Turn(1, Tenant(1), Principal(1)), Turn(2, Tenant(1), Principal(1)), ended}
	got := decide(t, s, attempts, f)
	if got[ended.ID].Runner != "" {
		t.Error("an attempt that is not queued was placed")
	}
	if n := len(s.Place(nil, f)); n != 0 {
		t.Errorf("%d decisions about nothing", n)
	}
}

func fitting(t *testing.T, s Scheduler) {
	f := Fleet()
	a := Turn(1, Tenant(1), Principal(1))
	if got := decide(t, s, []execution.Attempt{a}, f)[a.ID]; got.Reason != placement.NoRunner {
		t.Errorf("without a runner: %+v", got)
	}
	offline := Runner(1, Tenant(1), Principal(1), &f)
	delete(f.Connections, offline.ID)
	if got := decide(t, s, []execution.Attempt{a}, f)[a.ID]; !strings.Contains(got.Reason, "offline") {
		t.Errorf("with an offline runner: %+v", got)
	}
	here := Runner(2, Tenant(1), Principal(1), &f)
	if got := decide(t, s, []execution.Attempt{a}, f)[a.ID]; got.Runner != here.ID {
		t.Errorf("with a fitting runner: %+v", got)
	}
}

// neverWeaker is INV-11: each way in which the one runner is weaker defers the
// attempt, and the same runner without it takes it.
func neverWeaker(t *testing.T, s Scheduler) {
	for name, weaken := range map[string]func(*execution.Attempt, *execution.Runner, *placement.Fleet){
		"boundary": func(a *execution.Attempt, _ *execution.Runner, _ *placement.Fleet) {
			a.Requirements.Boundary = "microvm"
		},
		"unknown boundary": func(a *execution.Attempt, _ *execution.Runner, _ *placement.Fleet) {
			a.Requirements.Boundary = "vault"
		},
		"no sandbox":      func(_ *execution.Attempt, r *execution.Runner, _ *placement.Fleet) { r.Facts.Boundary = "" },
		"limits":          func(_ *execution.Attempt, r *execution.Runner, _ *placement.Fleet) { r.Facts.Limits = "rlimit" },
		"adapter":         func(_ *execution.Attempt, r *execution.Runner, _ *placement.Fleet) { r.Facts.Adapters = nil },
		"system":          func(a *execution.Attempt, _ *execution.Runner, _ *placement.Fleet) { a.Requirements.OS = "darwin" },
		"paused":          func(_ *execution.Attempt, r *execution.Runner, _ *placement.Fleet) { r.Facts.Paused = true },
		"revoked":         func(_ *execution.Attempt, r *execution.Runner, _ *placement.Fleet) { r.State = execution.RunnerRevoked },
		"binding removed": func(_ *execution.Attempt, _ *execution.Runner, f *placement.Fleet) { f.Bindings[0].RemovedAt = seen },
		"binding narrow": func(_ *execution.Attempt, _ *execution.Runner, f *placement.Fleet) {
			f.Bindings[0].Actions = []string{"files.read"}
		},
		"exact runner": func(a *execution.Attempt, _ *execution.Runner, _ *placement.Fleet) {
			a.Requirements.Runners = []protocol.RunnerID{id[protocol.RunnerID]("run", 99)}
		},
	} {
		f := Fleet()
		a := Turn(1, Tenant(1), Principal(1))
		Runner(1, Tenant(1), Principal(1), &f)
		if got := decide(t, s, []execution.Attempt{a}, f)[a.ID]; got.Runner != f.Runners[0].ID {
			t.Errorf("%s: the twin that fits was not placed: %+v", name, got)
		}
		weaken(&a, &f.Runners[0], &f)
		if got := decide(t, s, []execution.Attempt{a}, f)[a.ID]; got.Runner != "" {
			t.Errorf("%s: placed on a weaker runner", name)
		}
	}
}

func tenantsApart(t *testing.T, s Scheduler) {
	f := Fleet()
	Runner(1, Tenant(1), Principal(1), &f)
	mine, other := Turn(1, Tenant(1), Principal(1)), Turn(2, Tenant(2), Principal(2))
	// A binding of the wrong tenant is worth nothing.
	f.Bindings = append(f.Bindings, execution.Binding{Tenant: Tenant(2), Principal: Principal(2), Runner: f.Runners[0].ID})
	if got := decide(t, s, []execution.Attempt{other}, f)[other.ID]; got.Reason != placement.NoRunner {
		t.Errorf("another tenant's attempt learned of the runner: %+v", got)
	}
	if got := decide(t, s, []execution.Attempt{mine}, f)[mine.ID]; got.Runner == "" {
		t.Errorf("the owner's attempt was not placed: %+v", got)
	}
}

func slots(t *testing.T, s Scheduler) {
	f := Fleet()
	Runner(1, Tenant(1), Principal(1), &f)
	f.Runners[0].Facts.Slots = 3
	f.Busy[f.Runners[0].ID] = 1
	var attempts []execution.Attempt
	for n := range 5 {
		attempts = append(attempts, Turn(n, Tenant(1), Principal(1)))
	}
	placed := 0
	for _, d := range decide(t, s, attempts, f) {
		if d.Runner != "" {
			placed++
		}
	}
	if placed != 2 {
		t.Errorf("%d turns were placed on 2 free slots", placed)
	}
	if f.Busy[f.Runners[0].ID] != 1 {
		t.Error("the fleet that was handed in was changed")
	}
}

// deviceActions: a turn that fills the machine must not block the action that
// it waits for.
func deviceActions(t *testing.T, s Scheduler) {
	f := Fleet()
	Runner(1, Tenant(1), Principal(1), &f)
	f.Busy[f.Runners[0].ID] = 1
	read, write := Action(1, Tenant(1), Principal(1), "files.read"), Action(2, Tenant(1), Principal(1), "files.write")
	got := decide(t, s, []execution.Attempt{read, write}, f)
	if got[read.ID].Runner == "" {
		t.Errorf("an allowed action waits for a slot: %+v", got[read.ID])
	}
	if got[write.ID].Runner != "" {
		t.Error("an action was placed that the machine's owner does not allow")
	}
}

func fair(t *testing.T, s Scheduler) {
	f := Fleet()
	var attempts []execution.Attempt
	for n := range 4 {
		attempts = append(attempts, Turn(n, Tenant(1), Principal(1)))
	}
	attempts = append(attempts, Turn(10, Tenant(1), Principal(2)), Turn(20, Tenant(2), Principal(3)))
	Runner(1, Tenant(1), Principal(1), &f)
	f.Runners[0].Facts.Slots = 2
	f.Bindings = append(f.Bindings, execution.Binding{Tenant: Tenant(1), Principal: Principal(2), Runner: f.Runners[0].ID})
	Runner(2, Tenant(2), Principal(3), &f)
	var order []string
	for _, d := range s.Place(attempts, f) {
		order = append(order, strings.TrimLeft(d.Attempt.String()[4:], "0"))
	}
	// Tenant 1 and 2 take turns; within tenant 1 principal 1 and 2 do.
	if got, want := strings.Join(order, " "), " 20 10 1 2 3"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	got := decide(t, s, attempts, f)
	for _, n := range []int{0, 10, 20} {
		if got[id[protocol.AttemptID]("att", n)].Runner == "" {
			t.Errorf("attempt %d was starved: %+v", n, got[id[protocol.AttemptID]("att", n)])
		}
	}
}

func repeatable(t *testing.T, s Scheduler) {
	f := Fleet()
	for n := range 4 {
		Runner(n, Tenant(1), Principal(1), &f)
	}
	attempts := []execution.Attempt{Turn(1, Tenant(1), Principal(1)), Turn(2, Tenant(1), Principal(1))}
	first := s.Place(attempts, f)
	if first[0].Runner == first[1].Runner {
		t.Errorf("two turns were put on one of four idle runners: %+v", first)
	}
	for range 20 {
		if again := s.Place(attempts, f); !reflect.DeepEqual(first, again) {
			t.Fatalf("%+v, then %+v", first, again)
		}
	}
}

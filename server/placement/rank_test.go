package placement

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
)

var seen = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func runner(id protocol.RunnerID, name string) execution.Runner {
	return execution.Runner{ID: id, Tenant: "ten_1", Owner: "prn_1", Name: name, State: execution.RunnerActive, LastSeenAt: seen,
		Facts: execution.Facts{OS: "linux", Arch: "amd64", Slots: 2, Boundary: "container", Limits: "cgroup",
			Actions: []string{"files.read"}, Adapters: []string{"native"},
			Harnesses: []execution.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}}}
}

func fleet(runners ...execution.Runner) Fleet {
	f := Fleet{Runners: runners, Connections: map[protocol.RunnerID]execution.Connection{}, Busy: map[protocol.RunnerID]int{}}
	for _, r := range runners {
		f.Connections[r.ID] = execution.Connection{Runner: r.ID}
		f.Bindings = append(f.Bindings, execution.Binding{Tenant: "ten_1", Principal: "prn_1", Runner: r.ID})
	}
	return f
}

func turnAttempt() execution.Attempt {
	return execution.Attempt{ID: "att_1", Tenant: "ten_1", Principal: "prn_1", SubjectKind: execution.SubjectTurn, State: execution.AttemptQueued,
		Requirements: execution.Requirements{Boundary: "process", Trust: "untrusted", Adapter: "native"}}
}

func action(name string) execution.Attempt {
	a := turnAttempt()
	a.SubjectKind, a.Requirements = execution.SubjectAction, execution.Requirements{Action: name}
	return a
}

// TestReasons: each thing that speaks against a runner has its code and words of
// its own, alone, and its absence is eligible. INV-11.
func TestReasons(t *testing.T) {
	for name, c := range map[string]struct {
		attempt execution.Attempt
		change  func(*execution.Attempt, *execution.Runner, *Fleet)
		code    ReasonCode
		says    string
	}{
		"revoked": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.State = execution.RunnerRevoked }, ReasonGone, "removed or revoked"},
		"left":    {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.State = execution.RunnerLeft }, ReasonGone, "removed or revoked"},
		"offline": {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) { f.Connections = nil }, ReasonOffline, "last seen 2030-01-02T03:04:05Z"},
		"never seen": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, f *Fleet) {
			f.Connections, r.LastSeenAt = nil, time.Time{}
		}, ReasonOffline, "it is offline"},
		"draining": {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) {
			f.Hosts = map[protocol.RunnerID]Host{"run_1": {Node: Said{"Nomad's node one is being drained", "nomad node drain -disable 1"}}}
		}, ReasonNode, "Nomad's node one is being drained"},
		"draining, an action": {action("files.read"), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) {
			f.Hosts = map[protocol.RunnerID]Host{"run_1": {Node: Said{"Nomad's node one is being drained", "nomad node drain -disable 1"}}}
		}, ReasonNode, "Nomad's node one is being drained"},
		"paused":       {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.Facts.Paused = true }, ReasonPaused, "its owner paused it"},
		"no binding":   {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) { f.Bindings = nil }, ReasonNoBinding, "no binding to it for whole turns"},
		"other action": {action("files.read"), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) { f.Bindings[0].Actions = []string{"turn"} }, ReasonNoBinding, "no binding to it for files.read"},
		"owner":        {action("files.read"), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.Facts.Actions = nil }, ReasonNotAllowed, "its owner does not allow files.read"},
		"no sandbox": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) {
			r.Facts.Boundary, r.Facts.SandboxProblem = "", "bubblewrap is missing"
		}, ReasonNoSandbox, "no turn runs in a sandbox there: bubblewrap is missing"},
		"no worker": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) {
			r.Facts = execution.Facts{OS: "linux", Arch: "amd64", SandboxProblem: "bivouac-worker is not there"}
		}, ReasonNoSandbox, "there: bivouac-worker is not there"},
		"not started": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, f *Fleet) {
			f.Connections, r.Facts = nil, execution.Facts{OS: "linux", Arch: "amd64", SandboxProblem: protocol.NotRunYet}
		}, ReasonOffline, "it has joined, and bivouac-edge does not run there yet"},
		"not one slot":  {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.Facts.Slots = 0 }, ReasonNoSlot, "it has no slot for turns"},
		"boundary":      {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) { a.Requirements.Boundary = "gvisor" }, ReasonBoundary, "of class container, and gvisor was asked for"},
		"made-up class": {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) { a.Requirements.Boundary = "moon" }, ReasonBoundary, "moon was asked for"},
		"limits":        {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.Facts.Limits = "rlimit" }, ReasonLimits, "only by rlimit"},
		"trust by default": {turnAttempt(), func(a *execution.Attempt, r *execution.Runner, _ *Fleet) {
			r.Facts.Limits, a.Requirements.Trust = "rlimit", ""
		}, ReasonLimits, "only by rlimit"},
		"no slot": {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) { f.Busy["run_1"] = 2 }, ReasonNoSlot, "all of its 2 slots are taken"},
		"adapter": {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) { a.Requirements.Adapter = "pi" }, ReasonAdapter, "adapter pi"},
		"harness": {turnAttempt(), func(_ *execution.Attempt, r *execution.Runner, _ *Fleet) { r.Facts.Harnesses = nil }, ReasonHarness, "does not say which worker it has"},
		"turns of its quota": {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) {
			f.Busy["run_1"], f.Quotas = 1, map[protocol.RunnerID]Quota{"run_1": {Name: "acme/laptop", MaxTurns: 1}}
		}, ReasonQuota, "its quota (acme/laptop): 1 turns are there, at most 1 may be"},
		"actions of its quota": {action("files.read"), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) {
			f.Acting, f.Quotas = map[protocol.RunnerID]int{"run_1": 2}, map[protocol.RunnerID]Quota{"run_1": {MaxActions: 2, Spent: "of turns alone"}}
		}, ReasonQuota, "2 actions are under way there"},
		"the day of its quota": {turnAttempt(), func(_ *execution.Attempt, _ *execution.Runner, f *Fleet) {
			f.Quotas = map[protocol.RunnerID]Quota{"run_1": {MaxTurns: 2, Spent: "9 tokens were used today"}}
		}, ReasonQuota, "9 tokens were used today"},
		"egress": {turnAttempt(), func(a *execution.Attempt, r *execution.Runner, _ *Fleet) {
			a.Requirements.Egress, r.Facts.RefusesEgress = true, true
		}, ReasonEgress, "lets no sandbox there read packages"},
		"os":   {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) { a.Requirements.OS = "darwin" }, ReasonSystem, "linux/amd64, and darwin/any processor"},
		"arch": {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) { a.Requirements.Arch = "arm64" }, ReasonSystem, "any system/arm64"},
		"another machine asked for": {action("files.read"), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) {
			a.Requirements.Runners = []protocol.RunnerID{"run_9"}
		}, ReasonExcluded, "the model asked for another machine"},
		"excluded": {turnAttempt(), func(a *execution.Attempt, _ *execution.Runner, _ *Fleet) {
			a.Requirements.Runners = []protocol.RunnerID{"run_9"}
		}, ReasonExcluded, "runners list does not name it"},
	} {
		f := fleet(runner("run_1", "laptop"))
		if r := Rank(c.attempt, f); !slices.Equal(r.Candidates, []protocol.RunnerID{"run_1"}) || !r.Verdicts[0].Eligible() || r.Summary() != "" {
			t.Errorf("%s: the twin that fits: %+v", name, r)
		}
		a := c.attempt
		c.change(&a, &f.Runners[0], &f)
		r := Rank(a, f)
		if len(r.Candidates) != 0 || len(r.Verdicts) != 1 || len(r.Verdicts[0].Reasons) != 1 {
			t.Errorf("%s: %+v", name, r)
			continue
		}
		if got := r.Verdicts[0].Reasons[0]; got.Code != c.code || !strings.Contains(got.Text, c.says) || !strings.Contains(r.Summary(), c.says) {
			t.Errorf("%s: %+v, want %s with %q", name, got, c.code, c.says)
		}
	}
}

func TestAllReasonsAtOnce(t *testing.T) {
	f := fleet(runner("run_1", "laptop"))
	f.Connections, f.Bindings, f.Busy["run_1"] = nil, nil, 2
	f.Runners[0].Facts.Paused = true
	r := Rank(turnAttempt(), f)
	want := "laptop: it is offline, last seen 2030-01-02T03:04:05Z, its owner paused it, you have no binding to it for whole turns, all of its 2 slots are taken"
	if got := r.Summary(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := len(r.Remedies()); got != 4 {
		t.Errorf("%d remedies: %q", got, r.Remedies())
	}
}

// roomy is a node that has what turns of the tests ask for, and so much is all it has.
var roomy = Host{Pool: "agents", Most: execution.Resources{CPUMillis: 4000, MemoryBytes: 8 << 30, DiskBytes: 64 << 30},
	Largest: execution.Resources{CPUMillis: 4000, MemoryBytes: 16 << 30, DiskBytes: 64 << 30}}

// An attempt that asks for an allocation of its own goes where one can be started, and
// nowhere else; one that does not is told nothing of allocations. INV-11.
func TestAllocation(t *testing.T) {
	own := turnAttempt()
	own.Requirements.Allocation = true
	for says, change := range map[string]func(*execution.Runner, *Fleet){
		"it was not started by Nomad":      func(r *execution.Runner, _ *Fleet) { r.Workload = "" },
		"this server does not watch Nomad": func(_ *execution.Runner, f *Fleet) { f.Hosts = nil },
		"Nomad has not answered": func(_ *execution.Runner, f *Fleet) {
			f.Hosts["run_1"] = Host{Unknown: Said{"Nomad has not answered", "nomad status"}}
		},
		"does not start turns in allocations of their own": func(r *execution.Runner, _ *Fleet) { r.Facts.Allocations = false },
		"its owner is asked about each turn there":         func(r *execution.Runner, _ *Fleet) { r.Facts.SecondKeys = []string{"files.write", secondkey.Turn} },
		"Nomad does not say how much its node has":         func(_ *execution.Runner, f *Fleet) { f.Hosts["run_1"] = Host{} },
		"this server starts no allocations":                func(_ *execution.Runner, f *Fleet) { f.Allocations = Allocations{} },
		"all of the 3 allocations of this server are taken": func(_ *execution.Runner, f *Fleet) {
			f.Allocations.Taken = 3
		},
		"Nomad refuses": func(_ *execution.Runner, f *Fleet) { f.Allocations.Held = Said{"Nomad refuses", "bivouac nomad setup"} },
		"no memory is left": func(_ *execution.Runner, f *Fleet) {
			f.Allocations.Full = map[protocol.RunnerID]Said{"run_1": {"no memory is left", "wait"}}
		},
	} {
		f := fleet(runner("run_1", "laptop"))
		f.Runners[0].Workload, f.Runners[0].Facts.Allocations = "agents/bivouac-runner/edge/node", true
		f.Runners[0].Facts.SecondKeys = []string{"files.write"} // not about turns
		f.Hosts, f.Allocations = map[protocol.RunnerID]Host{"run_1": roomy}, Allocations{Most: 3, Taken: 2}
		if r := Rank(own, f); len(r.Candidates) != 1 {
			t.Fatalf("the twin of %q: %+v", says, r)
		}
		change(&f.Runners[0], &f)
		r := Rank(own, f)
		if len(r.Candidates) != 0 || len(r.Verdicts[0].Reasons) != 1 || r.Verdicts[0].Reasons[0].Code != ReasonAllocation || !strings.Contains(r.Summary(), says) || len(r.Remedies()) != 1 {
			t.Errorf("%q: %+v", says, r)
		}
		if shared := Rank(turnAttempt(), f); len(shared.Candidates) != 1 {
			t.Errorf("one that shares is told %q", shared.Summary())
		}
	}
}

// What a node could never hold is said with how much it is, what there is, and what mends
// it; what it just holds goes there.
func TestTooLarge(t *testing.T) {
	for _, c := range []struct {
		more         execution.Resources
		says, remedy string
	}{
		{execution.Resources{}, "", ""},
		{execution.Resources{MemoryBytes: 1}, "laptop: the agent asks 8193 MiB of memory for a turn, and its node has 8192 for one (the largest of pool agents has 16384)",
			"laptop: lower memory in the sandbox of the agent, bivouac agents apply FILE, and send the turn anew; or have a runner on a larger node of pool agents"},
		{execution.Resources{MemoryBytes: 9 << 30}, "laptop: the agent asks 17408 MiB of memory for a turn, and the largest node of pool agents has 16384 for one",
			"laptop: lower memory in the sandbox of the agent, bivouac agents apply FILE, and send the turn anew; or add a larger node to pool agents"},
		{execution.Resources{CPUMillis: 4000}, "laptop: the agent asks 8000 thousandths of a core for a turn, and the largest node of pool agents has 4000 for one",
			"laptop: lower cpu_millis in the sandbox of the agent, bivouac agents apply FILE, and send the turn anew; or add a larger node to pool agents"},
		{execution.Resources{DiskBytes: 1}, "laptop: the agent asks 65537 MiB of disk for a turn, and the largest node of pool agents has 65536 for one",
			"laptop: lower disk in the sandbox of the agent, bivouac agents apply FILE, and send the turn anew; or add a larger node to pool agents"},
	} {
		a, f := turnAttempt(), fleet(runner("run_1", "laptop"))
		f.Runners[0].Workload, f.Runners[0].Facts.Allocations = "agents/bivouac-runner/edge/node", true
		f.Hosts, f.Allocations = map[protocol.RunnerID]Host{"run_1": roomy}, Allocations{Most: 3}
		has := roomy.Most
		a.Requirements.Allocation, a.Requirements.Resources = true, execution.Resources{
			CPUMillis: has.CPUMillis + c.more.CPUMillis, MemoryBytes: has.MemoryBytes + c.more.MemoryBytes, DiskBytes: has.DiskBytes + c.more.DiskBytes}
		r := Rank(a, f)
		if r.Summary() != c.says || (len(r.Candidates) == 1) != (c.says == "") || strings.Join(r.Remedies(), "; ") != c.remedy {
			t.Errorf("%+v more: %q %q", c.more, r.Summary(), r.Remedies())
		}
	}
}

// Jobs that were stopped and do not end are named, with what helps; without them there is
// nothing to do but to wait.
func TestTakenByWhatDoesNotEnd(t *testing.T) {
	a := turnAttempt()
	a.Requirements.Allocation = true
	for _, c := range []struct {
		ending       []string
		says, remedy string
	}{
		{nil, "all of the 3 allocations of this server are taken", "wait, or raise max_allocations in the nomad block of server.hcl"},
		{[]string{"bivouac-a-1"}, "taken; 1 of them were stopped, and Nomad has not seen their end: bivouac-a-1", "nomad operator api -X PUT /v1/node/NODE/purge"},
		{[]string{"a", "b", "c", "d", "e"}, "5 of them were stopped, and Nomad has not seen their end: a, b, c and 2 more", "nomad node status"},
	} {
		f := fleet(runner("run_1", "laptop"))
		f.Runners[0].Workload, f.Runners[0].Facts.Allocations = "agents/bivouac-runner/edge/node", true
		f.Hosts, f.Allocations = map[protocol.RunnerID]Host{"run_1": roomy}, Allocations{Most: 3, Taken: 3, Ending: c.ending}
		r := Rank(a, f)
		if len(r.Candidates) != 0 || !strings.HasSuffix(r.Summary(), c.says) || len(r.Remedies()) != 1 || !strings.Contains(r.Remedies()[0], c.remedy) {
			t.Errorf("%d that end: %q %q", len(c.ending), r.Summary(), r.Remedies())
		}
		f.Allocations.Taken = 2
		if r := Rank(a, f); len(r.Candidates) != 1 {
			t.Errorf("%d that end, and one is free: %q", len(c.ending), r.Summary())
		}
	}
}

// What another scheduler says of a runner's task is said where the runner is away, and
// takes none away that is here.
func TestTaskOfAHost(t *testing.T) {
	f := fleet(runner("run_1", "laptop"))
	f.Hosts = map[protocol.RunnerID]Host{"run_1": {Task: Said{"Nomad has not started it on its node yet", "nomad alloc status 1"}}}
	if got := Rank(turnAttempt(), f).Candidates; !slices.Equal(got, []protocol.RunnerID{"run_1"}) {
		t.Errorf("connected: %v", got)
	}
	f.Connections = nil
	if r := Rank(turnAttempt(), f); !strings.HasSuffix(r.Summary(), "it is offline, last seen 2030-01-02T03:04:05Z, Nomad has not started it on its node yet") ||
		!slices.Contains(r.Remedies(), "laptop: nomad alloc status 1") {
		t.Errorf("offline: %q %q", r.Summary(), r.Remedies())
	}
}

// TestOthersDoNotExist: runners that the principal neither owns nor may use are
// not named, whatever their state. INV-9.
func TestOthersDoNotExist(t *testing.T) {
	mine, theirs, foreign := runner("run_1", "mine"), runner("run_2", "theirs"), runner("run_3", "foreign")
	theirs.Owner, foreign.Tenant = "prn_2", "ten_2"
	f := fleet(mine, theirs, foreign)
	f.Bindings[1].Principal = "prn_2"
	names := func(a execution.Attempt) string {
		var out []string
		for _, v := range Rank(a, f).Verdicts {
			out = append(out, v.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(turnAttempt()); got != "mine" {
		t.Errorf("prn_1 sees %q", got)
	}
	f.Bindings = append(f.Bindings, execution.Binding{Tenant: "ten_1", Principal: "prn_1", Runner: "run_2", Actions: []string{"files.read"}})
	if got := names(turnAttempt()); got != "mine theirs" {
		t.Errorf("bound to one action, prn_1 sees %q", got)
	}
	if got := Rank(action("files.read"), f).Candidates; !slices.Equal(got, []protocol.RunnerID{"run_1", "run_2"}) {
		t.Errorf("candidates %v", got)
	}
	f.Bindings[len(f.Bindings)-1].RemovedAt = seen
	if got := names(turnAttempt()); got != "mine" {
		t.Errorf("after its binding was removed, prn_1 sees %q", got)
	}
	stranger := turnAttempt()
	stranger.Principal = "prn_3"
	if r := Rank(stranger, f); r.Summary() != NoRunner || !slices.Equal(r.Remedies(), []string{AddRunner}) {
		t.Errorf("a stranger learns %+v", r)
	}
}

func TestOrder(t *testing.T) {
	a, b, c, d := runner("run_1", "a"), runner("run_2", "b"), runner("run_3", "c"), runner("run_4", "d")
	b.Facts.Slots, d.Facts.Slots = 8, 1
	f := fleet(d, c, b, a)
	f.Busy["run_1"] = 1
	want := []protocol.RunnerID{"run_2", "run_3", "run_4", "run_1"} // idle first, most room first, then by id
	if got := Rank(turnAttempt(), f).Candidates; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	slices.Reverse(f.Runners)
	if again := Rank(turnAttempt(), f); !slices.Equal(again.Candidates, want) || again.Verdicts[0].Name != "a" {
		t.Errorf("the order of the fleet changes the ranking: %+v", again)
	}
	before := Fleet{Runners: slices.Clone(f.Runners), Bindings: slices.Clone(f.Bindings)}
	Rank(turnAttempt(), f)
	if !reflect.DeepEqual(before.Runners, f.Runners) || !reflect.DeepEqual(before.Bindings, f.Bindings) {
		t.Error("ranking changed the fleet")
	}
}

func TestSummaryIsShort(t *testing.T) {
	var runners []execution.Runner
	for n := range 30 {
		runners = append(runners, runner(protocol.RunnerID(fmt.Sprintf("run_%02d", n)), fmt.Sprintf("machine-%02d", n)))
	}
	f := fleet(runners...)
	f.Connections = nil
	got := Rank(turnAttempt(), f).Summary()
	if !strings.HasPrefix(got, "machine-00: it is offline") || !strings.HasSuffix(got, "; and so on") || strings.Count(got, ";") != 4 {
		t.Errorf("summary %q", got)
	}
}

// What mends missing limits is what that machine said of itself; one that said nothing
// is told the usual.
func TestLimitsAreMendedAsTheMachineSays(t *testing.T) {
	for problem, want := range map[string]string{
		"": "run it as root or with a delegated cgroup, or say trust = \"trusted\" in the agent",
		"limits hold for single processes only: mount one: `mount -t cgroup2 cgroup2 /sys/fs/cgroup`": "on that machine: mount -t cgroup2 cgroup2 /sys/fs/cgroup  (bivouac-edge doctor there says more), or say trust = \"trusted\" in the agent",
		"root may do no more here: run the edge outside":                                              "on that machine, root may do no more here: run the edge outside, or say trust = \"trusted\" in the agent",
	} {
		got := sandbox(execution.Requirements{Boundary: protocol.BoundaryProcess}, execution.Facts{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsRlimit, SandboxProblem: problem})
		if len(got) != 1 || got[0].Code != ReasonLimits || got[0].Remedy != want {
			t.Errorf("%q: %+v, want %q", problem, got, want)
		}
	}
	// Where it has them and they were not seen to hold, nobody is told to do without.
	got := sandbox(execution.Requirements{Boundary: protocol.BoundaryProcess}, execution.Facts{Boundary: protocol.BoundaryProcess, SandboxProblem: "too busy to see it"})
	if len(got) != 1 || got[0].Code != ReasonLimits || !strings.Contains(got[0].Text, "not seen to hold: too busy to see it") || strings.Contains(got[0].Remedy, "trusted") {
		t.Errorf("limits that were not seen to hold: %+v", got)
	}
	if got := sandbox(execution.Requirements{Boundary: protocol.BoundaryProcess}, execution.Facts{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}); len(got) != 0 {
		t.Errorf("limits that were: %+v", got)
	}
}

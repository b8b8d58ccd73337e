package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

// Fleet is the state that placement may read.
type Fleet struct {
	Runners     []execution.Runner
	Connections map[protocol.RunnerID]execution.Connection // attached now
	// Busy counts the turns that each runner holds. A device action takes no
	// slot: a turn must not block the action that it waits for.
	Busy     map[protocol.RunnerID]int
	Bindings []execution.Binding
	// Acting counts the device actions that each runner holds, Quotas what bounds it.
	Acting map[protocol.RunnerID]int
	Quotas map[protocol.RunnerID]Quota
	// Hosts are those of runners that another scheduler runs.
	Hosts map[protocol.RunnerID]Host
	// Allocations are what it starts for single attempts.
	Allocations Allocations
}

// Allocations of all runners together: the queue is ours, and another scheduler is given
// no more at once than Most. The zero value is that there may be none.
type Allocations struct {
	Most, Taken int
	// Ending are jobs among those taken whose end was asked for and has not been seen.
	Ending []string
	// Held is why there is none now, where that is not the number, and Full why there is
	// none on the node of one runner.
	Held Said
	Full map[protocol.RunnerID]Said
}

// Host is what the scheduler that runs a runner says against giving it something new.
// It is said of what is new alone: what runs is judged by its lease.
type Host struct {
	Node Said // its node takes nothing new
	Task Said // the runner itself does not run there
	// Unknown is why nothing can be said of the node; its zero value is that it is known.
	Unknown Said
	// Most is what the sandboxes of one allocation may use there while no other turn does;
	// zero: it is not known. Pool is the node's, and Largest the most of each that a node
	// of that pool has.
	Most, Largest Resources
	Pool          string
}

// Resources of sandboxes, as an attempt requires them.
type Resources = execution.Resources

// Said is one sentence of another scheduler's, in our words, and the command that
// changes it; the zero value is none.
type Said struct{ Text, Remedy string }

// Quota of a runner, as of now. Zero fields bound nothing.
type Quota struct {
	Name                 string // whose it is, for people
	MaxTurns, MaxActions int
	// Spent says that the day's budget for turns is used up; empty: it is not.
	Spent string
}

// Decision about one attempt. Exactly one of Runner and Reason is set.
type Decision struct {
	Attempt protocol.AttemptID
	Runner  protocol.RunnerID
	Reason  string
}

// Ranking of the fleet for one attempt.
type Ranking struct {
	// Candidates may take it, best first.
	Candidates []protocol.RunnerID
	// Verdicts are about every runner that the principal owns or may use, in
	// order of their names.
	Verdicts []Verdict
}

// Verdict about one runner.
type Verdict struct {
	Runner  protocol.RunnerID
	Name    string
	Reasons []Reason // empty: it may take the attempt
}

// Eligible reports that nothing speaks against the runner.
func (v Verdict) Eligible() bool { return len(v.Reasons) == 0 }

// Reason why a runner may not take an attempt.
type Reason struct {
	Code ReasonCode
	Text string
	// Remedy is what would change it, as a command where there is one.
	Remedy string
}

// ReasonCode is a stable word for a reason.
type ReasonCode string

const (
	ReasonGone       ReasonCode = "gone"
	ReasonOffline    ReasonCode = "offline"
	ReasonPaused     ReasonCode = "paused"
	ReasonNoBinding  ReasonCode = "no_binding"
	ReasonNotAllowed ReasonCode = "not_allowed"
	ReasonNoSandbox  ReasonCode = "no_sandbox"
	ReasonBoundary   ReasonCode = "boundary"
	ReasonLimits     ReasonCode = "limits"
	ReasonNoSlot     ReasonCode = "no_slot"
	ReasonAdapter    ReasonCode = "adapter"
	ReasonSystem     ReasonCode = "system"
	ReasonExcluded   ReasonCode = "excluded"
	ReasonEgress     ReasonCode = "egress"
	ReasonQuota      ReasonCode = "quota"
	ReasonHarness    ReasonCode = "harness"
	ReasonNode       ReasonCode = "node"
	ReasonAllocation ReasonCode = "allocation"
)

// Rank is the whole of placement.
func Rank(a execution.Attempt, f Fleet) Ranking {
	var r Ranking
	for _, runner := range f.Runners {
		if !visible(a, runner, f.Bindings) {
			continue
		}
		v := Verdict{Runner: runner.ID, Name: runner.Name, Reasons: judge(a, runner, f)}
		r.Verdicts = append(r.Verdicts, v)
		if v.Eligible() {
			r.Candidates = append(r.Candidates, runner.ID)
		}
	}
	slices.SortFunc(r.Verdicts, func(x, y Verdict) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Runner, y.Runner))
	})
	slots := map[protocol.RunnerID]int{}
	for _, runner := range f.Runners {
		slots[runner.ID] = runner.Facts.Slots
	}
	slices.SortFunc(r.Candidates, func(x, y protocol.RunnerID) int {
		return cmp.Or(
			cmp.Compare(f.Busy[x], f.Busy[y]),                   // least busy
			cmp.Compare(slots[y]-f.Busy[y], slots[x]-f.Busy[x]), // most room
			cmp.Compare(x, y))
	})
	return r
}

// visible runners are those of the tenant that the principal owns or is bound
// to. Others do not exist for it. INV-9.
func visible(a execution.Attempt, r execution.Runner, bindings []execution.Binding) bool {
	if r.Tenant != a.Tenant {
		return false
	}
	return r.Owner == a.Principal || slices.ContainsFunc(bindings, func(b execution.Binding) bool {
		return binds(b, a, r.ID)
	})
}

func binds(b execution.Binding, a execution.Attempt, r protocol.RunnerID) bool {
	return b.Runner == r && b.Principal == a.Principal && b.Tenant == a.Tenant && b.RemovedAt.IsZero()
}

// judge collects every reason against a runner, so that a person mends them all
// at once.
func judge(a execution.Attempt, r execution.Runner, f Fleet) []Reason {
	var out []Reason
	out = append(out, presence(r, f)...)
	out = append(out, permission(a, r, f)...)
	if neverRan(r) {
		return out // what it offers is not known
	}
	out = append(out, fitness(a.Requirements, r.Facts)...)
	out = append(out, allocates(a, r, f)...)
	if turn(a) && hasSandbox(r.Facts) {
		out = append(out, room(r, f)...)
	}
	return append(out, withinQuota(a, r, f)...)
}

// room is a free slot for a turn. Without a sandbox there is none, which is said once.
func room(r execution.Runner, f Fleet) []Reason {
	switch {
	case r.Facts.Slots == 0:
		return []Reason{{ReasonNoSlot, "it has no slot for turns", "raise slots in its edge.hcl"}}
	case f.Busy[r.ID] >= r.Facts.Slots:
		return []Reason{{ReasonNoSlot, fmt.Sprintf("all of its %d slots are taken", r.Facts.Slots), "wait, or raise slots in its edge.hcl"}}
	}
	return nil
}

// neverRan: it has joined, and bivouac-edge was not started there since.
func neverRan(r execution.Runner) bool { return r.Facts.SandboxProblem == protocol.NotRunYet }

func hasSandbox(facts execution.Facts) bool {
	return slices.Contains(protocol.Boundaries, facts.Boundary)
}

// withinQuota is what the server's admin and the machine's owner bound. INV-10.
func withinQuota(a execution.Attempt, r execution.Runner, f Fleet) []Reason {
	q := f.Quotas[r.ID]
	text := ""
	switch {
	case turn(a) && q.Spent != "":
		text = q.Spent
	case turn(a) && q.MaxTurns > 0 && f.Busy[r.ID] >= q.MaxTurns:
		text = fmt.Sprintf("%d turns are there, at most %d may be", f.Busy[r.ID], q.MaxTurns)
	case !turn(a) && q.MaxActions > 0 && f.Acting[r.ID] >= q.MaxActions:
		text = fmt.Sprintf("%d actions are under way there, at most %d may be", f.Acting[r.ID], q.MaxActions)
	default:
		return nil
	}
	return []Reason{{ReasonQuota, fmt.Sprintf("its quota (%s): %s", q.Name, text), "bivouac quota"}}
}

func turn(a execution.Attempt) bool { return a.SubjectKind == execution.SubjectTurn }

func presence(r execution.Runner, f Fleet) []Reason {
	if r.State != execution.RunnerActive {
		return []Reason{{ReasonGone, "it was removed or revoked", "enrol the machine again: bivouac edge invite"}}
	}
	var out []Reason
	switch _, attached := f.Connections[r.ID]; {
	case neverRan(r):
		out = append(out, Reason{ReasonOffline, "it has joined, and bivouac-edge does not run there yet", "on that machine: bivouac-edge run"})
	case !attached:
		text := "it is offline"
		if !r.LastSeenAt.IsZero() {
			text += ", last seen " + r.LastSeenAt.UTC().Format(time.RFC3339)
		}
		out = append(out, Reason{ReasonOffline, text, "on that machine: bivouac-edge doctor, which says what keeps it away, or bivouac-edge run"})
	}
	host, offline := f.Hosts[r.ID], len(out) > 0
	if host.Node.Text != "" {
		out = append(out, Reason{ReasonNode, host.Node.Text, host.Node.Remedy})
	}
	if offline && host.Task.Text != "" {
		out = append(out, Reason{ReasonNode, host.Task.Text, host.Task.Remedy})
	}
	if r.Facts.Paused {
		out = append(out, Reason{ReasonPaused, "its owner paused it", "on that machine: bivouac-edge resume"})
	}
	return out
}

// permission is the binding of the principal, the owner's own policy and the
// agent's list of runners.
func permission(a execution.Attempt, r execution.Runner, f Fleet) []Reason {
	var out []Reason
	action := a.Requirements.Action
	if turn(a) {
		action = execution.ActionTurn
	}
	if !slices.ContainsFunc(f.Bindings, func(b execution.Binding) bool { return binds(b, a, r.ID) && b.Allows(action) }) {
		out = append(out, Reason{ReasonNoBinding, fmt.Sprintf("you have no binding to it for %s", what(action)),
			"its owner gives one: bivouac edge bind"})
	}
	if !turn(a) && !slices.Contains(r.Facts.Actions, action) {
		out = append(out, Reason{ReasonNotAllowed, fmt.Sprintf("its owner does not allow %s", action),
			"allow the action in its edge.hcl"})
	}
	switch want := a.Requirements.Runners; {
	case len(want) == 0 || slices.Contains(want, r.ID):
	case !turn(a): // the machine is an argument of the action
		out = append(out, Reason{ReasonExcluded, "the model asked for another machine", ""})
	default:
		out = append(out, Reason{ReasonExcluded, "the agent's runners list does not name it",
			"name it in the agent's runners and apply the definition: bivouac agents apply FILE"})
	}
	return out
}

func what(action string) string {
	if action == execution.ActionTurn {
		return "whole turns"
	}
	return action
}

// fitness compares what was asked for with what the machine offers. INV-11.
func fitness(q execution.Requirements, facts execution.Facts) []Reason {
	var out []Reason
	if q.Boundary != "" {
		out = append(out, sandbox(q, facts)...)
		if !hasSandbox(facts) {
			return out // so it has no worker for it either
		}
	}
	if q.Egress && facts.RefusesEgress {
		out = append(out, Reason{ReasonEgress, "its owner lets no sandbox there read packages, and the agent names registries (egress)",
			"remove package_egress = false from its edge.hcl, or egress from the agent"})
	}
	if q.Adapter != "" && !slices.Contains(facts.Adapters, q.Adapter) {
		out = append(out, Reason{ReasonAdapter, fmt.Sprintf("it does not have the adapter %s", q.Adapter), "install it on that machine"})
	} else if q.Adapter != "" {
		if misfit := Misfit(Compatibility, q, facts); misfit != nil {
			out = append(out, *misfit)
		}
	}
	if q.OS != "" && q.OS != facts.OS || q.Arch != "" && q.Arch != facts.Arch {
		out = append(out, Reason{ReasonSystem, fmt.Sprintf("it is %s/%s, and %s/%s was asked for",
			facts.OS, facts.Arch, cmp.Or(q.OS, "any system"), cmp.Or(q.Arch, "any processor")), ""})
	}
	return out
}

func sandbox(q execution.Requirements, facts execution.Facts) []Reason {
	have := slices.Index(protocol.Boundaries, facts.Boundary)
	if have < 0 {
		text := "no turn runs in a sandbox there"
		if facts.SandboxProblem != "" {
			text += ": " + facts.SandboxProblem
		}
		return []Reason{{ReasonNoSandbox, text, "on that machine: bivouac-edge doctor"}}
	}
	var out []Reason
	// An unknown class asked for is stronger than all: never weaker.
	if want := slices.Index(protocol.Boundaries, q.Boundary); want < 0 || have < want {
		out = append(out, Reason{ReasonBoundary, fmt.Sprintf("its sandbox is of class %s, and %s was asked for", facts.Boundary, q.Boundary), ""})
	}
	switch {
	case q.Trust == protocol.TrustTrusted || facts.Limits == protocol.LimitsCgroup:
	case facts.Limits == "":
		out = append(out, Reason{ReasonLimits, "what limits untrusted code there was not seen to hold: " + cmp.Or(facts.SandboxProblem, "it does not say why"),
			"on that machine: bivouac-edge doctor  (it looks again by itself, within an hour, and at once when it is started anew)"})
	default:
		out = append(out, Reason{ReasonLimits, fmt.Sprintf("it can limit untrusted code only by %s, and cgroup limits are needed", facts.Limits),
			limitsMend(facts.SandboxProblem) + ", or say trust = \"trusted\" in the agent"})
	}
	return out
}

// limitsMend is what the machine's own doctor says: the command that its problem ends
// with, where it names one. Whether it runs as root already only the machine knows.
func limitsMend(problem string) string {
	if problem == "" {
		return "run it as root or with a delegated cgroup"
	}
	if before, _, ok := cutLast(problem, "`"); ok {
		if _, command, ok := cutLast(before, "`"); ok {
			return "on that machine: " + command + "  (bivouac-edge doctor there says more)"
		}
	}
	return "on that machine, " + problem
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

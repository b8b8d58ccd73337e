package jobs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// word says what has become of a job, from its allocations and, where it has none, from
// its evaluations. node is the one that was to have it, or empty.
func (n *Nomad) word(ctx context.Context, namespace, job, node string) (Standing, error) {
	allocs, _, err := n.api.Jobs().Allocations(job, false, query(ctx, namespace))
	if err = n.failed("listing the allocations of "+job, capability(namespace, "read-job"), err); notFound(err) {
		err = nil
	} else if err != nil {
		return Standing{}, err
	}
	look := fmt.Sprintf("nomad job status -namespace %s %s", namespace, job)
	if len(allocs) > 0 {
		return standingOn(allocs, node), nil
	}
	evals, _, err := n.api.Jobs().Evaluations(job, query(ctx, namespace))
	if err = n.failed("listing the evaluations of "+job, capability(namespace, "read-job"), err); err != nil && !notFound(err) {
		return Standing{}, err
	}
	if len(evals) == 0 {
		return Standing{"there is no such job: it was not made, or was removed", look}, nil
	}
	return evalStanding(evals, look), nil
}

// runs is said of an allocation that does what it is for.
const runs = "it runs"

// standingOn says what has become of the allocation on a node, where the turn is. Whoever
// may change jobs can have Nomad place them elsewhere, where they find no turn: that they
// run there, or have ended, says nothing about it.
func standingOn(allocs []*api.AllocationListStub, node string) Standing {
	age := func(a, b *api.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) }
	newest := slices.MaxFunc(allocs, age)
	there := slices.DeleteFunc(slices.Clone(allocs), func(a *api.AllocationListStub) bool { return a.NodeID != node })
	said := ownStanding(newest)
	switch {
	case node == "" || newest.NodeID == node:
	case len(there) == 0:
		said.Text += fmt.Sprintf(", on node %s, where its turn is not", newest.NodeName)
	default:
		said = ownStanding(slices.MaxFunc(there, age))
		said.Text += fmt.Sprintf("; Nomad has placed it again, on node %s, where its turn is not", newest.NodeName)
	}
	return said
}

// ownStanding of an allocation of an attempt's own. Pending, unknown and lost are three
// things: not begun, out of reach, and given up by Nomad.
func ownStanding(a *api.AllocationListStub) Standing {
	status := allocStatus(a)
	if a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun {
		return Standing{runs, status}
	}
	if a.ClientStatus == api.AllocClientStatusRunning {
		return Standing{"it is being stopped" + because(a.DesiredDescription), status}
	}
	if a.ClientStatus == api.AllocClientStatusComplete {
		return Standing{"its task has ended" + because(cmp.Or(ended(a, taskName), a.DesiredDescription)), status}
	}
	said := allocStanding(a, taskName)
	if a.ClientStatus == api.AllocClientStatusPending && a.DesiredStatus != api.AllocDesiredStatusRun {
		said.Text = "it was stopped before it began" + because(a.DesiredDescription)
	}
	return said
}

// ended says how a task ended, of what Nomad saw last: what came after that is what it
// decided, which is known of such a job. Empty: it saw no end.
func ended(a *api.AllocationListStub, task string) string {
	s := a.TaskStates[task]
	if s == nil {
		return ""
	}
	for _, e := range slices.Backward(s.Events) {
		switch e.Type {
		case api.TaskTerminated:
			said := "exit code " + cmp.Or(e.Details["exit_code"], strconv.Itoa(e.ExitCode))
			if n := cmp.Or(e.Details["signal"], strconv.Itoa(e.Signal)); n != "0" {
				said = "signal " + n
			}
			if e.Details["oom_killed"] == "true" {
				said += ", it had no memory left (OOM)"
			}
			return said + because(e.Message)
		case api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation:
			return e.DisplayMessage
		}
	}
	return ""
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// evalStanding says why a job has no allocation.
func evalStanding(evals []*api.Evaluation, look string) Standing {
	evals = slices.Clone(evals)
	slices.SortFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(b.ModifyIndex, a.ModifyIndex) })
	blocked := slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
	for _, e := range evals {
		if e.QuotaLimitReached != "" {
			return Standing{fmt.Sprintf("it waits for the quota %q of its namespace", e.QuotaLimitReached), "nomad quota status " + e.QuotaLimitReached}
		}
		if m := e.FailedTGAllocs[groupName]; m != nil {
			return Standing{"it waits: " + unplaced(m), remedyOf(m, look)}
		}
	}
	newest := evals[0]
	switch {
	case newest.Status == api.EvalStatusFailed:
		return Standing{"Nomad gave up placing it" + because(newest.StatusDescription), look}
	case blocked:
		return Standing{"it waits for room" + because(newest.StatusDescription), look}
	case newest.Status == api.EvalStatusPending:
		return Standing{"Nomad has not considered it yet", "nomad server members  (is there a leader?)"}
	}
	return Standing{"it has no allocation" + because(newest.StatusDescription), look}
}

// pinned is the constraint by which other nodes are left out, as Nomad writes it.
const pinned = "${node.unique.id}"

// unplaced says why a node does not take an allocation.
func unplaced(m *api.AllocationMetric) string {
	var why []string
	if len(m.QuotaExhausted) > 0 {
		why = append(why, "the quota of its namespace is used up ("+strings.Join(m.QuotaExhausted, ", ")+")")
	}
	if len(m.DimensionExhausted) > 0 {
		why = append(why, "its node has not enough left of: "+strings.Join(slices.Sorted(maps.Keys(m.DimensionExhausted)), ", "))
	}
	for _, c := range slices.Sorted(maps.Keys(m.ConstraintFiltered)) {
		switch {
		case strings.Contains(c, pinned):
		case c == lacksDriver:
			why = append(why, "raw_exec is not enabled on its node")
		default:
			why = append(why, "its node lacks what the job needs: "+c)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(m.ClassFiltered)) {
		why = append(why, fmt.Sprintf("nodes of class %q are left out", c))
	}
	if len(why) == 0 {
		return "its node takes nothing new, is down, or has left the node pool"
	}
	return strings.Join(why, "; ")
}

// askLess is what helps where a node has too little.
const askLess = "lower sandbox { memory cpu_millis disk } in the agent"

func remedyOf(m *api.AllocationMetric, look string) string {
	switch {
	case len(m.QuotaExhausted) > 0:
		return "nomad quota list"
	case len(m.DimensionExhausted) > 0:
		return "wait until turns there have ended, or " + askLess + "; " + look
	}
	return "nomad node status; " + look
}

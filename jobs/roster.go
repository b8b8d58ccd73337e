package jobs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/jobs/workload"
)

// roster is what Nomad does of the job of one rule.
type roster struct {
	// none is why it runs nowhere.
	none Standing
	// absent are nodes that could run it and do not.
	absent []Standing
	// begun are machines whose task is there, and what is said of it or where to look.
	begun map[string]Standing
}

// Absent says why a principal has no runner that Nomad should run for it, leaving out the
// machines that enrolled. Zero: nothing is missing, or server.hcl gives it none.
func (w *Watch) Absent(tenant protocol.TenantID, enrolled []string, principal ...string) Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Standing
	for _, rule := range w.cfg.Rules {
		if rule.Tenant != tenant || !slices.Contains(principal, rule.Principal) {
			continue
		}
		if w.listed.IsZero() || time.Since(w.listed) > staleAfter {
			return Standing{"Nomad, which should run runners for you, has not answered lately", "bivouac doctor"}
		}
		of := w.rosters[rule.Name]
		if of.none.Text != "" {
			all = append(all, of.none)
			continue
		}
		all = append(all, of.absent...)
		for _, machine := range slices.Sorted(maps.Keys(of.begun)) {
			if !slices.Contains(enrolled, machine) {
				all = append(all, of.begun[machine])
			}
		}
	}
	return joined(all)
}

// mostNodes bounds of how many nodes a sentence speaks.
const mostNodes = 3

func joined(all []Standing) (s Standing) {
	for i, one := range all {
		if i == mostNodes {
			s.Text += fmt.Sprintf("; and so on for %d more", len(all)-i)
			break
		}
		if i > 0 {
			s.Text += "; "
		}
		s.Text += one.Text
		if s.Remedy == "" {
			s.Remedy = one.Remedy
		}
	}
	return s
}

// census is what a list has of nodes: what is said of each, and its newest allocation of
// the job, by its id.
type census struct {
	nodes     []*api.NodeListStub
	standings map[string]Standing
	allocs    map[string]*api.AllocationListStub
}

// call reads what Nomad does of a rule's job. What is said of nodes without an allocation
// is added to into, by machine.
func (n *Nomad) call(ctx context.Context, rule workload.Rule, in census, into map[string]Standing) (roster, error) {
	of := roster{begun: map[string]Standing{}}
	for node, a := range in.allocs {
		if a.DesiredStatus != api.AllocDesiredStatusRun {
			continue
		}
		said := allocStanding(a, rule.Task)
		switch on := in.standings[node]; {
		case said.Text == "" && on.Text != "":
			said = Standing{"it has not enrolled, and " + on.Text, on.Remedy}
		case said.Text == "":
			said = Standing{"it runs, and has not enrolled yet", fmt.Sprintf("nomad alloc logs -stderr -namespace %s %s", rule.Namespace, short(a.ID))}
		}
		said.Text = fmt.Sprintf("its task (job %s) is on Nomad's node %s: %s", rule.Job, a.NodeName, said.Text)
		of.begun[machineOn(rule, node)] = said
	}
	bare := func(pool string) (all []*api.NodeListStub, here int, last Standing) {
		for _, node := range in.nodes {
			if pool != "" && node.NodePool != pool {
				continue
			}
			here++
			if s := in.standings[node.ID]; s.Text != "" {
				last = s
			} else if a := in.allocs[node.ID]; a == nil || a.DesiredStatus != api.AllocDesiredStatusRun {
				all = append(all, node)
			}
		}
		return all, here, last
	}
	if without, _, _ := bare(rule.Pool); len(of.begun) > 0 && len(without) == 0 {
		return of, nil
	}
	job, _, err := n.api.Jobs().Info(rule.Job, query(ctx, rule.Namespace))
	run := "nomad job run … jobs/runner.nomad.hcl  (jobs/README.md)"
	if rule.Namespace != DefaultNamespace {
		run = "nomad job run -var namespace=" + shellword.Quote(rule.Namespace) + " … jobs/runner.nomad.hcl  (jobs/README.md; or correct namespace of enrol in server.hcl)"
	}
	switch err = n.failed("reading job "+rule.Job, `namespace "`+rule.Namespace+`" { capabilities = ["read-job"] }`, err); {
	case notFound(err):
		of.none = Standing{fmt.Sprintf("Nomad has no job %s in namespace %s, which is to run them", rule.Job, rule.Namespace), run}
		return of, nil
	case err != nil:
		return of, err
	case job.Stop != nil && *job.Stop:
		of.none = Standing{fmt.Sprintf("Nomad's job %s in namespace %s, which is to run them, was stopped", rule.Job, rule.Namespace), run}
		return of, nil
	}
	pool := *job.NodePool
	without, here, last := bare(pool)
	switch {
	case here == 0:
		of.none = Standing{fmt.Sprintf("node pool %s, in which Nomad is to run them, has no node", pool), fmt.Sprintf("client { node_pool = %q } in the configuration of the nodes that shall run agents", pool)}
	case len(without) == 0 && len(of.begun) == 0:
		of.none = Standing{fmt.Sprintf("no node of node pool %s takes a runner: %s", pool, last.Text), last.Remedy}
	}
	if len(without) == 0 {
		return of, nil
	}
	evals, _, err := n.api.Jobs().Evaluations(rule.Job, query(ctx, rule.Namespace))
	if err = n.failed("listing the evaluations of "+rule.Job, `namespace "`+rule.Namespace+`" { capabilities = ["read-job"] }`, err); err != nil && !notFound(err) {
		return of, err
	}
	for _, node := range without {
		said := notPlaced(node, evals, *job.JobModifyIndex)
		if said.Remedy == "" {
			said.Remedy = fmt.Sprintf("nomad job eval -namespace %s %s", rule.Namespace, rule.Job)
		}
		into[machineOn(rule, node.ID)] = Standing{"Nomad has not placed it there: " + said.Text, said.Remedy}
		of.absent = append(of.absent, Standing{fmt.Sprintf("Nomad does not run job %s on its node %s: %s", rule.Job, node.Name, said.Text), said.Remedy})
	}
	return of, nil
}

// notPlaced says why a job of the system has nothing on a node, from what Nomad decided
// last of that node since the job is as it is.
func notPlaced(node *api.NodeListStub, evals []*api.Evaluation, since uint64) Standing {
	evals = slices.Clone(evals)
	slices.SortFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	for _, e := range evals {
		if e.CreateIndex < since || e.NodeID != "" && e.NodeID != node.ID || e.Status == api.EvalStatusCancelled {
			continue
		}
		if e.Status == api.EvalStatusPending {
			return Standing{"it has not considered it yet", "nomad server members  (is there a leader?)"}
		}
		if e.Status == api.EvalStatusFailed {
			return Standing{"it gave up (" + e.StatusDescription + ")", ""}
		}
		for _, group := range slices.Sorted(maps.Keys(e.FailedTGAllocs)) {
			return filtered(node, e.FailedTGAllocs[group])
		}
	}
	return Standing{"it says no longer why; a new evaluation tells", ""}
}

// Words of Nomad's scheduler for what a node lacks.
const (
	lacksVolume = "missing compatible host volumes"
	lacksDriver = "missing drivers"
)

// filtered says in our words what a node lacks.
func filtered(node *api.NodeListStub, m *api.AllocationMetric) Standing {
	status := "nomad node status " + short(node.ID)
	switch {
	case m.ConstraintFiltered[lacksVolume] > 0:
		return Standing{"it has not the host volume that the job names", `client { host_volume "bivouac-edge" { path = "/var/lib/bivouac-edge" } } in the configuration of that node, and a restart of its agent`}
	case m.ConstraintFiltered[lacksDriver] > 0:
		return Standing{"raw_exec is not enabled there", `plugin "raw_exec" { config { enabled = true } } in the configuration of that node, and a restart of its agent`}
	case len(m.ConstraintFiltered) > 0:
		return Standing{"it does not meet what the job asks of nodes: " + strings.Join(slices.Sorted(maps.Keys(m.ConstraintFiltered)), ", "), status}
	case len(m.QuotaExhausted) > 0:
		return Standing{"the quota of the namespace is used up: " + strings.Join(m.QuotaExhausted, ", "), "nomad quota list"}
	case len(m.DimensionExhausted) > 0:
		return Standing{"it has not enough left of: " + strings.Join(slices.Sorted(maps.Keys(m.DimensionExhausted)), ", "), status + "  (what runs there beside it?); resources in the job file are what a runner asks for"}
	}
	return Standing{"it takes no more", status}
}

// machineOn is the machine of a rule on a node.
func machineOn(rule workload.Rule, node string) string {
	return workload.Identity{Namespace: rule.Namespace, Job: rule.Job, Task: rule.Task, Node: node}.Machine()
}

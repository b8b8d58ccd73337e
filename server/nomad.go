package server

import (
	"context"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/jobs/workload"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/runnerapi"
	"bivouac/server/store"
)

// workloads judges identities for the listener of machines.
type workloads struct {
	judge   *workload.Judge
	refused *jobs.Refusals
}

// workloadsOf a configuration; nil without a Nomad whose machines enrol.
func workloadsOf(c *jobs.Config, refused *jobs.Refusals) runnerapi.Workloads {
	if c == nil || len(c.Rules) == 0 {
		return nil
	}
	return workloads{workload.NewJudge(workload.NewKeys(c.Address, c.Client), c.Rules), refused}
}

// Judge says whose machine a task of Nomad's becomes.
func (w workloads) Judge(ctx context.Context, token string) (engine.WorkloadEnrolment, func(error), error) {
	rule, id, err := w.judge.Judge(ctx, token)
	if err != nil {
		w.refused.Judged(err, time.Now())
		return engine.WorkloadEnrolment{}, nil, err
	}
	became := func(err error) { w.refused.Enrolled(rule, id, err, time.Now()) }
	return engine.WorkloadEnrolment{Workload: id.Machine(), Tenant: rule.Tenant, Principal: rule.Principal, Actions: rule.Actions}, became, nil
}

// examineRefused adds what this server refused of machines that came with an identity.
// INV-9: of all tenants, as the rest that an operator sees.
func (p *plane) examineRefused(ctx context.Context, st *store.Store, r *finding.Report) *finding.Report {
	if p.cfg.Nomad == nil || len(p.cfg.Nomad.Rules) == 0 {
		return r
	}
	p.refused.Examine(r, p.cfg.Nomad.Address, func(machine string) (at time.Time) {
		_ = st.View(ctx, store.AsLoop("doctor"), func(tx *store.Tx) error { // unread is: it stays said
			has, err := tx.RunnerOfWorkload(machine)
			if err == nil && has.State == execution.RunnerActive {
				at = has.EnrolledAt
			}
			return err
		})
		return at
	}, time.Now())
	return r
}

// hosts are Nomad's nodes for the engine.
type hosts struct{ watch *jobs.Watch }

// Standing of a machine, from the last list.
func (h hosts) Standing(machine string) placement.Host {
	node, task := h.watch.Standing(machine)
	has := h.watch.Measured(machine)
	return placement.Host{Node: placement.Said(node), Task: placement.Said(task), Unknown: placement.Said(h.watch.Unknown()),
		Most: placement.Resources(has.Most), Pool: has.Pool, Largest: placement.Resources(has.Largest)}
}

// Rooms are what the nodes have on which runners of a tenant run, or may.
func (h hosts) Rooms(tenant protocol.TenantID) (all []placement.Resources) {
	for _, has := range h.watch.Rooms(tenant) {
		all = append(all, placement.Resources(has.Most))
	}
	return all
}

// Absent says why a principal has no runner that Nomad should run.
func (h hosts) Absent(tenant protocol.TenantID, enrolled []string, principal ...string) placement.Said {
	return placement.Said(h.watch.Absent(tenant, enrolled, principal...))
}

// allocations are jobs of attempts, for the engine.
type allocations struct{ *jobs.Allocations }

// List says which there are.
func (a allocations) List(ctx context.Context) ([]engine.Allocated, error) {
	all, err := a.Allocations.List(ctx)
	out := make([]engine.Allocated, len(all))
	for i, is := range all {
		out[i] = engine.Allocated{Job: is.Job, Where: is.Namespace, Waits: is.Waits, Stopped: is.Stopped, Ended: is.Ended, Said: placement.Said(is.Said)}
	}
	return out, err
}

// Start asks for one.
func (a allocations) Start(ctx context.Context, want engine.Allocation) error {
	return a.Allocations.Start(ctx, jobs.Allocation{Job: want.Job, Attempt: want.Attempt.String(), Machine: want.Workload,
		CPUMillis: want.CPUMillis, MemoryBytes: want.MemoryBytes, DiskBytes: want.DiskBytes, Longest: want.Longest})
}

// Stop ends one, and removes one that has ended.
func (a allocations) Stop(ctx context.Context, is engine.Allocated) error {
	return a.Allocations.Stop(ctx, jobs.Allocated{Job: is.Job, Namespace: is.Where, Ended: is.Ended})
}

// Explain says what has become of one.
func (a allocations) Explain(ctx context.Context, workload, job string) (placement.Said, error) {
	said, err := a.Allocations.Explain(ctx, workload, job)
	return placement.Said(said), err
}

// Word is how the task of one ended.
func (a allocations) Word(ctx context.Context, workload, job string) (string, bool, error) {
	return a.Allocations.Word(ctx, workload, job)
}

// allocate is what starts attempts in allocations of their own; nil without a token for
// Nomad, or where none may be started. The deployment is named by its root, which is known
// once the server is enrolled.
func (p *plane) allocate(c *jobs.Config) engine.Allocations {
	if p.nodes == nil || len(c.Rules) == 0 || c.MaxAllocations == 0 {
		return nil
	}
	return allocations{jobs.NewAllocations(*c, p.nodes, func() (string, error) {
		root, err := p.broker.Root()
		if err != nil {
			return "", err
		}
		return identity.Fingerprint(root), nil
	})}
}

// watchNodes is the watch of a configuration; nil without a token to read nodes.
func (p *plane) watchNodes(c *jobs.Config) (*jobs.Watch, engine.Hosts) {
	if c == nil || c.TokenFile == "" && c.Token == "" {
		return nil, nil
	}
	w := jobs.NewWatch(*c, p.cfg.Log)
	return w, hosts{w}
}

// examineNomad adds what is seen of Nomad from here.
func examineNomad(ctx context.Context, c *jobs.Config, r *finding.Report) *finding.Report {
	if c != nil {
		c.Examine(ctx, r)
	}
	return r
}

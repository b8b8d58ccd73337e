package server

import (
	"context"

	"bivouac/edge/finding"
	"bivouac/jobs"
	"bivouac/jobs/workload"
	"bivouac/server/engine"
	"bivouac/server/placement"
	"bivouac/server/runnerapi"
)

// workloads judges identities for the listener of machines.
type workloads struct{ judge *workload.Judge }

// workloadsOf a configuration; nil without a Nomad whose machines enrol.
func workloadsOf(c *jobs.Config) runnerapi.Workloads {
	if c == nil || len(c.Rules) == 0 {
		return nil
	}
	return workloads{workload.NewJudge(workload.NewKeys(c.Address, c.Client), c.Rules)}
}

// Judge says whose machine a task of Nomad's becomes.
func (w workloads) Judge(ctx context.Context, token string) (engine.WorkloadEnrolment, error) {
	rule, id, err := w.judge.Judge(ctx, token)
	if err != nil {
		return engine.WorkloadEnrolment{}, err
	}
	return engine.WorkloadEnrolment{Workload: id.Machine(), Tenant: rule.Tenant, Principal: rule.Principal, Actions: rule.Actions}, nil
}

// hosts are Nomad's nodes for the engine.
type hosts struct{ watch *jobs.Watch }

// Standing of a machine, from the last list.
func (h hosts) Standing(machine string) placement.Host {
	node, task := h.watch.Standing(machine)
	return placement.Host{Node: placement.Said(node), Task: placement.Said(task)}
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

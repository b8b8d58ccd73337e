package server

import (
	"context"

	"bivouac/jobs"
	"bivouac/jobs/workload"
	"bivouac/server/engine"
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

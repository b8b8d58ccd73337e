package engine

import (
	"context"
	"fmt"
	"time"

	"bivouac/server/execution"
	"bivouac/server/store"
)

// explainIn bounds how long a person waits for another scheduler's word.
const explainIn = 5 * time.Second

// ownJob is the job of an attempt that waits for it or works in it.
type ownJob struct{ job, workload string }

// jobOf an attempt; empty without an allocation of its own.
func jobOf(tx *store.Tx, a execution.Attempt) (own ownJob, err error) {
	if a.Allocation == "" || a.State != execution.AttemptOffered && !a.State.Held() {
		return own, nil
	}
	own.job = a.Allocation
	own.workload, err = workloadOf(tx, a.Runner)
	if notFound(err) { // another's machine says no more than its name
		return ownJob{}, nil
	}
	return own, err
}

// explainAllocation asks the other scheduler what has become of the job, outside of every
// transaction: any replica may, and what it says is of now.
func (e *Engine) explainAllocation(ctx context.Context, x *Explanation) {
	if x.own.job == "" {
		return
	}
	its := fmt.Sprintf("; of its allocation (job %s) ", x.own.job)
	if e.cfg.Allocations == nil {
		x.WaitingFor += its + "this server can say nothing: it has no token for Nomad"
		x.Remedies = append(x.Remedies, "name token_file in the nomad block of server.hcl (jobs/README.md)")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, explainIn)
	defer cancel()
	said, err := e.cfg.Allocations.Explain(ctx, x.own.workload, x.own.job)
	if err != nil {
		x.WaitingFor += its + "nothing can be said: " + err.Error()
		return
	}
	x.WaitingFor += its + "Nomad says: " + said.Text
	if said.Remedy != "" {
		x.Remedies = append(x.Remedies, said.Remedy)
	}
}

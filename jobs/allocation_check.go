package jobs

import (
	"cmp"
	"context"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/jobs/workload"
)

// nobody is an attempt that there is not, nowhere a node, and unreached a version of a job
// that none has. What is asked must be valid: rights are judged after that.
const (
	nowhere                      = "00000000-0000-0000-0000-000000000000"
	nobody    protocol.AttemptID = "att_00000000000000000000000000"
	unreached                    = 1 << 62
)

// examineAllocations tries the rights that turns with allocations of their own need, each
// by a request that changes nothing: a job is made only if it were there already in a
// version that none has, and one that is not there is ended and removed.
func (n *Nomad) examineAllocations(ctx context.Context, r *finding.Report, rules []workload.Rule, most int) {
	if most == 0 || len(rules) == 0 {
		return
	}
	const check = "nomad.allocations"
	seen := map[string]bool{}
	for _, rule := range rules {
		if seen[rule.Namespace] {
			continue
		}
		seen[rule.Namespace] = true
		if err := n.tryAllocations(ctx, rule); err != nil {
			what, mend := mended(err, "nomad server members")
			r.Warn(check, what, "turns of agents that say allocation = \"own\" wait; others are not touched",
				mend+"; or max_allocations = 0 in the nomad block, where no agent shall have one")
			return
		}
	}
	r.Fine(check, "jobs of single attempts can be made, ended and removed; at most %d at once", most)
}

func (n *Nomad) tryAllocations(ctx context.Context, rule workload.Rule) error {
	id := protocol.AllocationJob(nobody, 1)
	job := jobOf(Allocation{Job: id, Attempt: nobody.String()}, rule, &api.Node{ID: nowhere, NodePool: cmp.Or(rule.Pool, api.NodePoolDefault)}, "")
	_, _, err := n.api.Jobs().EnforceRegister(job, unreached, change(ctx, rule.Namespace))
	if err == nil || !strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix) {
		return n.registering(id, rule.Namespace, err)
	}
	for _, try := range []struct {
		right string
		purge bool
	}{{"deregister-job", false}, {"purge-job", true}} {
		_, _, err := n.api.Jobs().Deregister(id, try.purge, change(ctx, rule.Namespace))
		if err = n.failed("ending a job", capability(rule.Namespace, try.right), err); refusedRight(err) {
			return err
		}
	}
	return nil
}

// refusedRight reports what a token may not; another failure says that it may.
func refusedRight(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.CodePermissionDenied || code == protocol.CodeUnauthenticated
}

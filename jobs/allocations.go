package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/jobs/workload"
)

// Allocations are jobs of single attempts: one task each, on the node of a runner, which
// is bivouac-edge supervise. Who calls decides which there are; a job is made at most
// once, and none is touched that another deployment made.
type Allocations struct {
	cfg   Config
	watch *Watch
	// deployment names this one; it is an error while it is not known.
	deployment func() (string, error)
}

// NewAllocations asks nobody. The watch gives hints.
func NewAllocations(c Config, w *Watch, deployment func() (string, error)) *Allocations {
	return &Allocations{cfg: c, watch: w, deployment: deployment}
}

// Allocation is one job to be made.
type Allocation struct {
	Job, Attempt string
	Machine      string // of the runner, see workload.Identity.Machine
	// What its sandboxes may use.
	CPUMillis, MemoryBytes, DiskBytes int64
	Longest                           time.Duration
}

// Allocated is one job as it was listed.
type Allocated struct {
	Job, Namespace string
	// Waits: Nomad has found no room. Stopped: its end was asked for. Ended: nothing of it
	// runs, or will.
	Waits, Stopped, Ended bool
	Said                  Standing
}

// Keys of the meta of such a job.
const (
	metaDeployment = "bivouac_deployment"
	metaAttempt    = "bivouac_attempt"
)

const (
	// pageOf jobs is listed at a time.
	pageOf = 200
	// mostWords bounds of how many jobs one list asks why.
	mostWords = 10
	// mostListed bounds how many jobs of one namespace are looked through, whose ever they
	// are.
	mostListed = 50_000
)

// Most at once.
func (a *Allocations) Most() int { return a.cfg.MaxAllocations }

// Hints count what Nomad said of nodes, allocations and evaluations, and ring the bell.
func (a *Allocations) Hints() uint64 { return a.watch.hints.Load() }

// Bell rings for hints.
func (a *Allocations) Bell() op.Bell { return a.watch.bell }

// List all jobs of this deployment, in the namespaces of its rules. A list is whole or
// none; a job of which nobody says why it is as it is stands there without a word.
func (a *Allocations) List(ctx context.Context) (all []Allocated, err error) {
	own, err := a.deployment()
	if err != nil {
		return nil, err
	}
	err = a.cfg.Ask(func(n *Nomad) error {
		for _, s := range a.cfg.Sites() {
			stubs, err := n.listJobs(ctx, s.Namespace, own)
			if err != nil {
				return err
			}
			for _, stub := range stubs {
				is := standingOfJob(stub)
				is.Namespace = s.Namespace
				all = append(all, is)
			}
		}
		a.ask(ctx, n, all)
		return nil
	})
	return all, err
}

// ask why some of them are as they are. Without an answer a job has no word, and is in the
// list all the same.
func (a *Allocations) ask(ctx context.Context, n *Nomad, all []Allocated) {
	words := 0
	for i := range all {
		is := &all[i]
		if is.Stopped || !is.Waits && !is.Ended || words == mostWords || ctx.Err() != nil {
			continue
		}
		words++
		said, err := n.word(ctx, is.Namespace, is.Job, "")
		if err != nil {
			a.watch.log.Warn("Nomad does not say why an allocation is as it is", "job", is.Job, "namespace", is.Namespace, "error", err)
			continue
		}
		is.Said = said
	}
}

// listJobs of a deployment's attempts, page by page. Others' are looked at and not kept.
func (n *Nomad) listJobs(ctx context.Context, namespace, deployment string) (own []*api.JobListStub, err error) {
	q := query(ctx, namespace)
	q.Prefix, q.PerPage = jobPrefix, pageOf
	for seen := 0; ; {
		page, meta, err := n.api.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
		if err != nil {
			return nil, n.failed("listing the jobs of attempts", capability(namespace, "list-jobs"), err)
		}
		for _, stub := range page {
			if _, _, err := protocol.ParseAllocationJob(stub.ID); err == nil && stub.Meta[metaDeployment] == deployment {
				own = append(own, stub)
			}
		}
		if meta.NextToken == "" {
			return own, nil
		}
		if seen += len(page); seen >= mostListed {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "namespace %q has more than %d jobs whose names begin with %q, which are looked through for those of attempts: "+
				"give this deployment a namespace of its own (nomad job status -namespace %s lists them)", namespace, mostListed, jobPrefix, namespace)
		}
		q.NextToken = meta.NextToken
	}
}

// standingOfJob reads what a list says of a job.
func standingOfJob(stub *api.JobListStub) Allocated {
	is := Allocated{Job: stub.ID, Stopped: stub.Stop}
	var in api.TaskGroupSummary
	if stub.JobSummary != nil {
		in = stub.JobSummary.Summary[groupName]
	}
	live := in.Running + in.Starting + in.Unknown
	is.Ended = stub.Status == "dead" && live == 0
	is.Waits = !is.Ended && !is.Stopped && in.Queued > 0 && live == 0
	return is
}

// Start makes a job that must not exist. One that does is fine if it is this attempt's:
// the answer to an earlier try of the same request was lost below us.
func (a *Allocations) Start(ctx context.Context, want Allocation) error {
	own, err := a.deployment()
	if err != nil {
		return err
	}
	rule, node, err := a.cfg.ruleOf(want.Machine)
	if err != nil {
		return err
	}
	return a.cfg.Ask(func(n *Nomad) error {
		on, _, err := n.api.Nodes().Info(node, query(ctx, ""))
		if err = n.failed("reading node "+short(node), `node { policy = "read" }`, err); err != nil {
			return before(err)
		}
		if rule.Pool != "" && on.NodePool != rule.Pool {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "node %s is in pool %q by now, and enrol %q of server.hcl takes %q", on.Name, on.NodePool, rule.Name, rule.Pool)
		}
		if err := fits(want, on); err != nil {
			return err
		}
		job := jobOf(want, rule, on, own)
		_, _, err = n.api.Jobs().EnforceRegister(job, 0, change(ctx, rule.Namespace))
		switch {
		case err == nil:
			return nil
		case strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix):
			return n.isOurs(ctx, rule.Namespace, want, own)
		}
		return n.registering(want.Job, rule.Namespace, err)
	})
}

// before says of a failure that came before the request that nothing was asked for.
func before(err error) error {
	if protocol.CodeOf(err) != protocol.CodeUnavailable {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "no allocation was asked for: %w", err)
}

// registering tells a refusal from what nobody knows. Nomad answers 500 to both.
func (n *Nomad) registering(job, namespace string, err error) error {
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusInternalServerError && slices.ContainsFunc(refusals, func(s string) bool { return strings.Contains(answer.Body(), s) }) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "making job %s: Nomad refuses it: %s", job, strings.Join(strings.Fields(answer.Body()), " "))
	}
	return n.failed("making job "+job, capability(namespace, "register-job"), err)
}

// refusals are the words of a Nomad that has looked at a job and takes it not.
var refusals = []string{"validation", "errors occurred", "error occurred", "does not exist", "doesn't exist", "nonexistent", "exceeds maximum", "quota", "not allowed"}

// isOurs takes a job of the same attempt, and refuses another's.
func (n *Nomad) isOurs(ctx context.Context, namespace string, want Allocation, own string) error {
	is, _, err := n.api.Jobs().Info(want.Job, query(ctx, namespace))
	if err = n.failed("reading job "+want.Job, capability(namespace, "read-job"), err); notFound(err) {
		return protocol.Errorf(protocol.CodeUnavailable, "job %s was there a moment ago, and is not any more", want.Job)
	} else if err != nil {
		return err
	}
	if is.Meta[metaDeployment] == own && is.Meta[metaAttempt] == want.Attempt {
		return nil
	}
	return protocol.Errorf(protocol.CodeAlreadyExists, "there is a job %s in namespace %s that is not this server's: see `nomad job inspect -namespace %[2]s %[1]s`", want.Job, namespace)
}

// Stop asks for the end of a job, and removes one that has ended.
func (a *Allocations) Stop(ctx context.Context, is Allocated) error {
	return a.cfg.Ask(func(n *Nomad) error {
		right := "deregister-job"
		if is.Ended {
			right = "purge-job"
		}
		_, _, err := n.api.Jobs().Deregister(is.Job, is.Ended, change(ctx, is.Namespace))
		if err = n.failed("ending job "+is.Job, capability(is.Namespace, right), err); notFound(err) {
			return nil
		}
		return err
	})
}

// Explain says what has become of a job.
func (a *Allocations) Explain(ctx context.Context, machine, job string) (said Standing, err error) {
	rule, node, err := a.cfg.ruleOf(machine)
	if err != nil {
		return said, err
	}
	err = a.cfg.Ask(func(n *Nomad) error {
		said, err = n.word(ctx, rule.Namespace, job, node)
		return err
	})
	if on, _ := a.watch.Standing(machine); err == nil && said.Text == runs && on.Text != "" {
		said = Standing{runs + ", and " + on.Text, on.Remedy}
	}
	return said, err
}

// Word is how the task of a job ended where its turn is; over: it has, or there is no such
// job any more.
func (a *Allocations) Word(ctx context.Context, machine, job string) (said string, over bool, err error) {
	rule, node, err := a.cfg.ruleOf(machine)
	if err != nil {
		return "", false, err
	}
	err = a.cfg.Ask(func(n *Nomad) error {
		all, _, err := n.api.Jobs().Allocations(job, false, query(ctx, rule.Namespace))
		if err = n.failed("listing the allocations of "+job, capability(rule.Namespace, "read-job"), err); err != nil && !notFound(err) {
			return err
		}
		all = slices.DeleteFunc(all, func(s *api.AllocationListStub) bool { return s.NodeID != node })
		over = len(all) == 0
		for _, s := range all {
			if word := ended(s, taskName); word != "" {
				said, over = word, true
			}
		}
		return nil
	})
	return said, over, err
}

// ruleOf the machines that a machine is one of, and its node.
func (c Config) ruleOf(machine string) (workload.Rule, string, error) {
	at := strings.LastIndexByte(machine, '/')
	for _, r := range c.Rules {
		if at > 0 && machineOn(r, machine[at+1:]) == machine {
			return r, machine[at+1:], nil
		}
	}
	return workload.Rule{}, "", protocol.Errorf(protocol.CodeFailedPrecondition, "no enrol block of server.hcl is about the machines of %q any more: name its job again, or let the agent's turns run elsewhere", machine)
}

func capability(namespace, name string) string {
	return fmt.Sprintf("namespace %q { capabilities = [%q] }", namespace, name)
}

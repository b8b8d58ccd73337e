package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/store"
)

// Times of the work on allocations.
const (
	// askGrace is how long after it was asked for a job may be missing from the lists:
	// by then no call of ours is under way.
	askGrace = 30 * time.Second
	// askIn bounds one question and one request.
	askIn = 10 * time.Second
	// listAllocations is how often they are listed where no hint says anything, and
	// listAwaited where an offer waits for one.
	listAllocations = 30 * time.Second
	listAwaited     = 5 * time.Second
	// listPause is the least time between two lists: a burst of hints is one of them.
	listPause = 500 * time.Millisecond
)

// allocationsOp is the one op that lists.
const allocationsOp = "allocations"

func askOp(job string) string  { return "allocate/" + job }
func stopOp(job string) string { return "deallocate/" + job }

// tickAllocate makes what another scheduler runs follow the attempts: it lists, asks for
// what an offer needs, and ends what none needs any more. The list is the truth, and the
// store is read after it. All that is asked of that scheduler is asked by ops.
func (e *Engine) tickAllocate(ctx context.Context) (bool, error) {
	if e.cfg.Allocations == nil {
		return false, nil
	}
	seen, listed := e.allocated.last()
	var own []execution.Attempt
	if err := e.cfg.Store.View(ctx, store.AsLoop("allocate"), func(tx *store.Tx) (err error) {
		own, err = tx.AllocatedAttempts()
		return err
	}); err != nil {
		return false, err
	}
	listing := e.listAllocations(own)
	if listed.IsZero() {
		return listing, nil
	}
	e.allocated.forget(time.Now())
	e.endAllocations(own, seen)
	worked, err := each(own, func(a execution.Attempt) (bool, error) {
		if a.State != execution.AttemptOffered {
			e.allocated.begins(a.Runner, a.ClaimedAt)
			return false, nil // who holds it is judged by its lease alone
		}
		if a.AllocationAskedAt.IsZero() {
			return e.allocate(ctx, a)
		}
		why := lostAllocation(a, seen, listed)
		if why == "" {
			return false, nil
		}
		if err := e.withdraw(ctx, a, why); err != nil {
			return false, err
		}
		e.allocated.spoils(a.Runner, time.Now(), why)
		return true, nil
	})
	return listing || worked, err
}

// listAllocations starts a list where one is due.
func (e *Engine) listAllocations(own []execution.Attempt) bool {
	hints := e.cfg.Allocations.Hints()
	every := listAllocations
	for _, a := range own {
		if a.State == execution.AttemptOffered {
			every = listAwaited
		}
	}
	if !e.allocated.due(hints, every, time.Now()) || e.busy(allocationsOp) {
		return false
	}
	return e.cfg.Ops.Start(allocationsOp, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, askIn)
		defer cancel()
		begun := time.Now()
		e.allocated.lists(begun, hints)
		seen, err := e.cfg.Allocations.List(ctx)
		e.allocated.listed(begun, seen, err)
		if err != nil {
			e.cfg.Log.Warn("allocations could not be listed: none is asked for until they are", "error", err)
		}
		e.cfg.Allocations.Bell().Ring()
	})
}

// lostAllocation says that the job of an offer will not start a supervisor; empty: it may.
// The claim may win against it: then the offer is none any more, and nothing is taken back.
func lostAllocation(a execution.Attempt, seen []Allocated, listed time.Time) string {
	for _, s := range seen {
		if s.Job == a.Allocation && s.Ended {
			return "its allocation ended before it began: " + cmp.Or(s.Said.Text, "Nomad says nothing more") + " (job " + s.Job + ")"
		}
		if s.Job == a.Allocation {
			return ""
		}
	}
	if listed.Before(a.AllocationAskedAt.Add(askGrace)) {
		return ""
	}
	return "its allocation is not there: Nomad did not take the job " + a.Allocation + ", or somebody removed it"
}

// endAllocations starts what ends jobs that no attempt needs, and removes those that have
// ended. What is not in the store is needed by nobody: it was written before the job was
// asked for.
func (e *Engine) endAllocations(own []execution.Attempt, seen []Allocated) {
	needed := map[string]bool{}
	for _, a := range own {
		needed[a.Allocation] = true
	}
	for _, s := range seen {
		if needed[s.Job] || s.Stopped && !s.Ended || !e.allocated.handle(s.Job) {
			continue // its node may be out of reach
		}
		if !e.cfg.Ops.Start(stopOp(s.Job), func(ctx context.Context) {
			if e.replicas.leading() == 0 {
				return // another may have asked for it since
			}
			ctx, cancel := context.WithTimeout(ctx, askIn)
			defer cancel()
			if err := e.cfg.Allocations.Stop(ctx, s); err != nil { // the next list shows it again
				e.cfg.Log.Warn("an allocation that nobody needs could not be ended", "job", s.Job, "error", err)
				return
			}
			e.allocated.relist()
			e.cfg.Log.Info("allocation ended", "job", s.Job, "removed", s.Ended)
		}) {
			e.allocated.unhandle(s.Job)
		}
	}
}

// allocate asks for the allocation of an offer. That it is asked for is written first, by
// the leader alone, and an id is asked for once, whatever becomes of the request: what
// failed is offered anew under another. INV-3, INV-4, INV-14.
func (e *Engine) allocate(ctx context.Context, offered execution.Attempt) (bool, error) {
	if held := e.allocated.held(time.Now()); held.Text != "" || e.busy(askOp(offered.Allocation)) {
		return false, nil
	}
	var want Allocation
	err := e.cfg.Store.Update(ctx, store.AsLoop("allocate"), func(tx *store.Tx) error {
		if err := e.guardLead(tx); err != nil {
			return err
		}
		a, err := tx.Attempt(offered.ID)
		if err != nil {
			return err
		}
		if a.State != execution.AttemptOffered || a.Allocation != offered.Allocation || !a.AllocationAskedAt.IsZero() {
			return protocol.Errorf(protocol.CodeConflict, "attempt %s moved on", a.ID)
		}
		next := a
		next.AllocationAskedAt = tx.Now
		if want, err = e.wanted(a); err != nil {
			return err
		}
		if want.Workload, err = workloadOf(tx, a.Runner); err != nil {
			return err
		}
		offered = next
		return tx.SaveAttempt(next, a.State, a.Fence)
	})
	if err != nil {
		return false, err
	}
	e.allocated.asked(want.Job, time.Now())
	e.request(offered, want)
	return true, nil
}

// request starts the one request of an id. Without room for an op the job stays missing, and
// its offer is taken back after the grace.
func (e *Engine) request(a execution.Attempt, want Allocation) {
	e.cfg.Ops.Start(askOp(want.Job), func(ctx context.Context) {
		if e.replicas.leading() == 0 {
			return // another may have found the job missing
		}
		ctx, cancel := context.WithTimeout(ctx, askIn)
		defer cancel()
		err := e.cfg.Allocations.Start(ctx, want)
		e.settled.put(completion{op: askOp(want.Job), apply: func(ctx context.Context) error { return e.answered(ctx, a, err) }})
	})
}

// answered takes in what became of a request. Where nobody knows, the lists say it.
func (e *Engine) answered(ctx context.Context, a execution.Attempt, failure error) error {
	now := time.Now()
	switch code := protocol.CodeOf(failure); code {
	case "":
		e.allocated.taken()
		e.cfg.Log.Info("allocation asked for", "attempt", a.ID, "runner", a.Runner, "job", a.Allocation)
		return nil
	case protocol.CodeUnavailable, protocol.CodeDeadlineExceeded, protocol.CodeCancelled, protocol.CodeOutcomeUnknown:
		e.allocated.hold(now, placement.Said{Text: failure.Error(), Remedy: "bivouac doctor"})
		e.allocated.relist()
		e.cfg.Log.Warn("whether an allocation was taken is not known: the next list says it", "attempt", a.ID, "job", a.Allocation, "error", failure)
		return nil
	case protocol.CodePermissionDenied, protocol.CodeUnauthenticated:
		e.allocated.hold(now, placement.Said{Text: failure.Error(), Remedy: protocol.Mend(failure, "bivouac doctor")})
	}
	e.allocated.unasked(a.Allocation)
	e.cfg.Log.Warn("an allocation was refused", "attempt", a.ID, "job", a.Allocation, "error", failure)
	e.pauses.again(offeredTo(a.ID, a.Runner), now, time.Second, time.Minute)
	return e.withdraw(ctx, a, "its allocation was refused: "+failure.Error())
}

// wanted is what the allocation of an offer is.
func (e *Engine) wanted(a execution.Attempt) (Allocation, error) {
	work := &runnerv1.Work{}
	if err := proto.Unmarshal(a.Work, work); err != nil {
		return Allocation{}, protocol.Errorf(protocol.CodeDataLoss, "the work of attempt %s cannot be read: %w", a.ID, err)
	}
	l := work.GetTurn().GetLimits()
	return Allocation{
		Job: a.Allocation, Attempt: a.ID, CPUMillis: l.GetCpuMillis(), MemoryBytes: l.GetMemoryBytes(), DiskBytes: l.GetDiskBytes(),
		Longest: max(0, time.Until(a.Deadline)) + e.cfg.Limits.AllocationTTL + a.Retention + execution.LeaseGuard,
	}, nil
}

func workloadOf(tx *store.Tx, id protocol.RunnerID) (string, error) {
	r, err := tx.Runner(id)
	return r.Workload, err
}

// offerTTL is how long an offer waits for its claim.
func (l Limits) offerTTL(own bool) time.Duration {
	if own {
		return max(l.OfferTTL, l.AllocationTTL)
	}
	return l.OfferTTL
}

// allocations are what placement may give now. On a replica that does not lead nothing is
// known of the other scheduler, and only the number counts.
func (e *Engine) allocations(tx *store.Tx) (out placement.Allocations, err error) {
	if e.cfg.Allocations == nil {
		return out, nil
	}
	own, err := tx.AllocatedAttempts()
	if err != nil {
		return out, err
	}
	out.Most, out.Taken = e.cfg.Allocations.Most(), len(own)
	if e.replicas.leading() == 0 {
		return out, nil
	}
	out.Held = e.allocated.held(tx.Now)
	more, ending := e.allocated.besides(own)
	out.Taken, out.Ending = out.Taken+more, ending
	out.Full = e.allocated.full(own, tx.Now)
	return out, nil
}

// mayAllocate counts again where an offer is written: several decisions of one pass were
// made of the same fleet.
func (e *Engine) mayAllocate(tx *store.Tx, runner protocol.RunnerID) (bool, error) {
	all, err := e.allocations(tx)
	if err != nil || all.Held.Text != "" || all.Full[runner].Text != "" || all.Taken >= all.Most {
		return false, err
	}
	r, err := tx.Runner(runner)
	if err != nil {
		return false, err
	}
	there, err := tx.AttemptsOfRunner(runner)
	there = slices.DeleteFunc(there, func(a execution.Attempt) bool { return a.SubjectKind != execution.SubjectTurn })
	return len(there) < r.Facts.Slots, err
}

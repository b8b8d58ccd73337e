package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/store"
)

// tickPlace offers queued attempts to runners, takes back offers that nobody
// claimed, and keeps the reason of what fits nowhere. INV-11 is the scheduler's.
func (e *Engine) tickPlace(ctx context.Context) (bool, error) {
	var queued, stale []execution.Attempt
	var fleet Fleet
	err := e.cfg.Store.View(ctx, store.AsLoop("place"), func(tx *store.Tx) (err error) {
		queued, stale = nil, nil
		waiting, err := tx.AttemptsIn(store.All, execution.AttemptQueued, execution.AttemptOffered)
		if err != nil {
			return err
		}
		for _, a := range waiting {
			switch {
			case a.State == execution.AttemptQueued:
				queued = append(queued, a)
			case !tx.Now.Before(a.OfferedAt.Add(e.cfg.Limits.offerTTL(a.Allocation != ""))):
				stale = append(stale, a)
			}
		}
		if len(queued) > 0 {
			fleet, err = e.fleetOf(tx, queued)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	maps.DeleteFunc(fleet.Connections, func(_ protocol.RunnerID, c execution.Connection) bool { return e.replicas.gone(c.Replica) })
	withdrawn, err := each(stale, func(a execution.Attempt) (bool, error) {
		return true, e.withdraw(ctx, a, "the offer was not claimed in time"+e.allocated.says(a.Allocation))
	})
	if err != nil || len(queued) == 0 {
		return withdrawn, err
	}
	offered, err := each(e.decide(queued, fleet), func(d Decision) (bool, error) { return e.offer(ctx, d) })
	return withdrawn || offered, err
}

// fleetOf reads what placement may read.
func (e *Engine) fleetOf(tx *store.Tx, attempts []execution.Attempt) (Fleet, error) {
	f := Fleet{Connections: map[protocol.RunnerID]execution.Connection{}, Busy: map[protocol.RunnerID]int{}, Acting: map[protocol.RunnerID]int{}}
	var err error
	if f.Runners, err = tx.ActiveRunners(); err != nil {
		return f, err
	}
	connections, err := tx.Connections()
	if err != nil {
		return f, err
	}
	for _, c := range connections {
		if c.Attached(tx.Now) {
			f.Connections[c.Runner] = c
		}
	}
	working, err := tx.AttemptsIn(store.All, execution.AttemptOffered, execution.AttemptClaimed, execution.AttemptRunning, execution.AttemptSuspect)
	if err != nil {
		return f, err
	}
	for _, a := range working {
		if a.SubjectKind == execution.SubjectTurn {
			f.Busy[a.Runner]++
		} else {
			f.Acting[a.Runner]++
		}
	}
	f.Hosts = e.hosts(f.Runners)
	if f.Allocations, err = e.allocations(tx); err != nil {
		return f, err
	}
	if f.Quotas, err = e.runnerQuotas(tx, f.Runners); err != nil {
		return f, err
	}
	var seen []protocol.PrincipalID
	for _, a := range attempts {
		if slices.Contains(seen, a.Principal) {
			continue
		}
		seen = append(seen, a.Principal)
		bindings, err := tx.BindingsOf(a.Principal)
		if err != nil {
			return f, err
		}
		f.Bindings = append(f.Bindings, bindings...)
	}
	return f, nil
}

// hosts are what another scheduler says of the runners that it runs.
func (e *Engine) hosts(runners []execution.Runner) map[protocol.RunnerID]placement.Host {
	if e.cfg.Hosts == nil {
		return nil
	}
	all := map[protocol.RunnerID]placement.Host{}
	for _, r := range runners {
		if r.Workload != "" {
			all[r.ID] = e.cfg.Hosts.Standing(r.Workload)
		}
	}
	return all
}

// decide asks the scheduler. A runner that let an offer of an attempt lie, or
// declined it, is passed over for a while when another could take it. Even where it
// is the only one it is left alone for a moment: it would only say the same again,
// and each time costs a command in its mailbox.
func (e *Engine) decide(queued []execution.Attempt, fleet Fleet) []Decision {
	var plain []execution.Attempt
	var out []Decision
	now := time.Now()
	for _, a := range queued {
		rested := fleet
		rested.Connections = maps.Clone(fleet.Connections)
		maps.DeleteFunc(rested.Connections, func(id protocol.RunnerID, _ execution.Connection) bool {
			return !e.pauses.over(offeredTo(a.ID, id), now)
		})
		fresh := rested
		fresh.Connections = maps.Clone(rested.Connections)
		maps.DeleteFunc(fresh.Connections, func(id protocol.RunnerID, _ execution.Connection) bool {
			return !e.pauses.over(passedOver(a.ID, id), now)
		})
		if len(fresh.Connections) == len(fleet.Connections) {
			plain = append(plain, a)
			continue
		}
		ds := e.cfg.Scheduler.Place([]execution.Attempt{a}, fresh)
		if len(ds) == 0 || ds[0].Runner == "" {
			ds = e.cfg.Scheduler.Place([]execution.Attempt{a}, rested)
		}
		if len(rested.Connections) < len(fleet.Connections) && (len(ds) == 0 || ds[0].Runner == "") {
			continue // why the offer came back stays the reason
		}
		out = append(out, ds...)
	}
	return append(out, e.cfg.Scheduler.Place(plain, fleet)...)
}

func passedOver(a protocol.AttemptID, r protocol.RunnerID) string {
	return "offer/" + a.String() + "/" + r.String()
}

// offeredTo is the key of the pause between two offers of one attempt to one runner.
// The leader keeps it, whichever replica hears that an offer is declined.
func offeredTo(a protocol.AttemptID, r protocol.RunnerID) string {
	return "offered/" + a.String() + "/" + r.String()
}

// How long that pause is the first time, and at most.
const minOffered, maxOffered = 100 * time.Millisecond, 5 * time.Second

// With an allocation each offer is a job for another scheduler, and the pause is longer.
const minAllocated, maxAllocated = 5 * time.Second, 2 * time.Minute

// offer invites one runner to claim, by its mailbox: a command to a machine is
// never lost on the way. Without a runner the reason is kept for explain.
func (e *Engine) offer(ctx context.Context, d Decision) (worked bool, err error) {
	own := false
	err = e.cfg.Store.Update(ctx, store.AsLoop("place"), func(tx *store.Tx) error {
		worked = false
		if err := e.guardLead(tx); err != nil {
			return err
		}
		a, err := tx.Attempt(d.Attempt)
		if err != nil || a.State != execution.AttemptQueued {
			return err
		}
		if d.Runner == "" {
			if a.DeferReason == d.Reason {
				return nil
			}
			next := a
			next.DeferReason = d.Reason
			return tx.SaveAttempt(next, a.State, a.Fence)
		}
		next, err := a.Offer(d.Runner, tx.Now)
		if err != nil {
			return err
		}
		if own = a.Requirements.Allocation; own {
			if more, err := e.mayAllocate(tx, d.Runner); err != nil || !more {
				return err
			}
			next.Allocations++
			next.Allocation = protocol.AllocationJob(a.ID, next.Allocations)
		}
		worked = true
		shown, err := shownTurn(tx, a, d.Runner)
		if err != nil {
			return err
		}
		if err := tx.SaveAttempt(next, a.State, a.Fence); err != nil {
			return err
		}
		return e.mail(tx, d.Runner, a.ID, &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Offer{Offer: &runnerv1.Offer{
			AttemptId: a.ID.String(), SubjectKind: string(a.SubjectKind), Boundary: a.Requirements.Boundary, Egress: a.Requirements.Egress,
			SpecDigest: a.SpecDigest, Turn: shown, Allocation: next.Allocation,
			DeadlineUs: tx.Now.Add(e.cfg.Limits.offerTTL(next.Allocation != "")).UnixMicro()}}})
	})
	if worked && err == nil {
		least, most := minOffered, maxOffered
		if own {
			least, most = minAllocated, maxAllocated
		}
		e.pauses.again(offeredTo(d.Attempt, d.Runner), time.Now(), least, most)
		e.cfg.Log.Info("attempt offered", "attempt", d.Attempt, "runner", d.Runner)
	}
	return worked, err
}

// withdraw takes an offer back; another runner is asked first. A machine that waits for
// an allocation is told: it has a slot for it.
func (e *Engine) withdraw(ctx context.Context, offered execution.Attempt, why string) error {
	err := e.cfg.Store.Update(ctx, store.AsLoop("place"), func(tx *store.Tx) error {
		a, err := tx.Attempt(offered.ID)
		if err != nil {
			return err
		}
		if a.State != execution.AttemptOffered || a.Runner != offered.Runner || !a.OfferedAt.Equal(offered.OfferedAt) {
			return protocol.Errorf(protocol.CodeConflict, "attempt %s moved on", a.ID)
		}
		next, err := a.Step(execution.AttemptWithdraw, tx.Now)
		if err != nil {
			return err
		}
		next.DeferReason = also(a.DeferReason, why)
		if err := tx.SaveAttempt(next, a.State, a.Fence); err != nil || a.Allocation == "" {
			return err
		}
		return e.mail(tx, a.Runner, a.ID, &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{
			Stop: &runnerv1.Stop{AttemptId: a.ID.String(), Allocation: a.Allocation, Reason: why}}})
	})
	if err == nil {
		e.pauses.set(passedOver(offered.ID, offered.Runner), time.Now().Add(2*e.cfg.Limits.OfferTTL))
	}
	return err
}

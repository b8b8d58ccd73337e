package engine

import (
	"context"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// portion is what a turn reserves at a time: about one model call's worth, an
// eighth of its budget, so that a broker that restarts and forgets its slices
// costs the turn no more than that. The engine fills a slice that a call of a
// service-placed turn finds too small; a runner's calls go to the broker past it
// and end the turn there, so a runner-placed turn has half of its budget at hand.
func portion(p session.Placement, budget int64) int64 {
	if p == session.PlacementRunner {
		return max(1, budget/2)
	}
	return max(1, budget/8)
}

// nextCeiling tops a slice up when less than half a portion is left in it.
// Reserved plus spent never exceeds the budget. INV-19.
func nextCeiling(s policy.Slice, portion, most int64) int64 {
	if s.CeilingMicroUSD-s.DrawnMicroUSD >= max(1, portion/2) {
		return s.CeilingMicroUSD
	}
	return max(s.CeilingMicroUSD, min(most, s.DrawnMicroUSD+portion))
}

// reserve makes the turn's slice for one boot of the broker.
func (w *turnTx) reserve(boot string, ceiling int64) error {
	s := policy.Slice{ID: newID[protocol.SliceKind](w.e, w.tx.Now), Tenant: w.turn.Tenant, Turn: w.turn.ID,
		BrokerBoot: boot, CeilingMicroUSD: ceiling}
	w.turn.Slice = s.ID
	w.touch()
	w.afterCommit(func() { w.e.leases.useSlice(w.turn.Attempt, s) })
	return w.tx.InsertSlice(s)
}

// elsewhere is what the turn's other slices took of its budget: what a closed one
// drew, and all of one that is still open at the broker.
func (w *turnTx) elsewhere() (int64, error) {
	all, err := w.tx.SlicesOfTurn(w.turn.ID)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, s := range all {
		switch {
		case s.ID == w.turn.Slice:
		case s.ClosedAt.IsZero():
			sum += max(s.CeilingMicroUSD, s.DrawnMicroUSD)
		default:
			sum += s.DrawnMicroUSD
		}
	}
	return sum, nil
}

// topUp raises the slice's ceiling when it runs low, and reports whether it did.
// force is for a request that the broker already refused: it doubles the slice.
func (w *turnTx) topUp(drawn int64, force bool) (bool, error) {
	s, err := w.tx.Slice(w.turn.Slice)
	if err != nil {
		return false, err
	}
	snap, err := w.snapshot()
	if err != nil {
		return false, err
	}
	other, err := w.elsewhere()
	if err != nil {
		return false, err
	}
	budget, before := snap.Agent.Limits.MaxCostMicroUSD, s.CeilingMicroUSD
	s.DrawnMicroUSD = max(s.DrawnMicroUSD, drawn)
	s.CeilingMicroUSD = nextCeiling(s, portion(w.turn.Placement, budget), budget-other)
	if force {
		s.CeilingMicroUSD = max(s.CeilingMicroUSD, min(budget-other, 2*before))
	}
	if s.CeilingMicroUSD == before {
		return false, nil // the top-up is the only write
	}
	w.afterCommit(func() { w.e.leases.useSlice(w.turn.Attempt, s) })
	return true, w.tx.SaveSlice(s)
}

// renewSlice replaces the slice of a broker that restarted: the old one counts
// as spent. It reports false when nothing of the budget is left.
func (w *turnTx) renewSlice(boot string) (bool, error) {
	old, err := w.tx.Slice(w.turn.Slice)
	if err != nil || old.BrokerBoot == boot {
		return err == nil, err
	}
	snap, err := w.snapshot()
	if err != nil {
		return false, err
	}
	old.DrawnMicroUSD, old.ClosedAt = old.CeilingMicroUSD, w.tx.Now
	if err := w.tx.SaveSlice(old); err != nil {
		return false, err
	}
	other, err := w.elsewhere()
	if err != nil {
		return false, err
	}
	left := snap.Agent.Limits.MaxCostMicroUSD - other - old.CeilingMicroUSD
	if left <= 0 {
		return false, nil
	}
	return true, w.reserve(boot, min(left, portion(w.turn.Placement, snap.Agent.Limits.MaxCostMicroUSD)))
}

// restSlice ends the slice of a turn that begins to wait for a person: the
// broker closes it, and what it drew is what is spent. INV-7, INV-19.
func (w *turnTx) restSlice() error {
	if w.turn.Slice == "" {
		return nil
	}
	id := w.turn.Slice
	w.turn.Slice = ""
	w.touch()
	return w.cleanup("slice", id.String())
}

// wakeSlice cuts a slice of the broker's current boot for a turn that goes on.
// It reports false, and the turn goes on waiting, until the broker was heard and
// has said what the slices before drew.
func (w *turnTx) wakeSlice() (bool, error) {
	if w.turn.Slice != "" {
		return true, nil
	}
	boot := w.e.view.boot()
	if boot == "" {
		return false, nil
	}
	all, err := w.tx.SlicesOfTurn(w.turn.ID)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(all, func(s policy.Slice) bool { return s.ClosedAt.IsZero() }) {
		return false, nil
	}
	snap, err := w.snapshot()
	if err != nil {
		return false, err
	}
	other, err := w.elsewhere()
	if err != nil {
		return false, err
	}
	// Of a budget that is used up an empty slice is cut: an approved action needs
	// none of it, and the next model call says what is missing.
	budget := snap.Agent.Limits.MaxCostMicroUSD
	return true, w.reserve(boot, min(max(0, budget-other), portion(w.turn.Placement, budget)))
}

const usageOp = "usage"

// tickUsage asks the broker what open slices drew, tops up those that run low,
// and replaces those of an earlier boot.
func (e *Engine) tickUsage(ctx context.Context) (bool, error) {
	now := time.Now()
	boot := e.view.boot()
	if boot == "" || !e.pauses.over(usageOp, now) || e.busy(usageOp) {
		return false, nil
	}
	var turns []session.Turn
	err := e.Store.View(ctx, store.AsLoop("usage"), func(tx *store.Tx) (err error) {
		turns, err = tx.OwnedTurns(e.Replica)
		return err
	})
	if err != nil {
		return false, err
	}
	e.pauses.set(usageOp, now.Add(e.Limits.UsageEvery))
	bySlice := map[protocol.SliceID]protocol.TurnID{}
	var ids []protocol.SliceID
	for _, t := range turns {
		if t.Slice != "" {
			bySlice[t.Slice] = t.ID
			ids = append(ids, t.Slice)
		}
	}
	if len(ids) == 0 {
		return false, nil
	}
	slices.Sort(ids)
	return e.Ops.Start(usageOp, func(ctx context.Context) {
		u, err := e.Broker.Usage(ctx, false, ids...)
		if err != nil {
			return // the next pass asks again
		}
		e.settled.put(completion{op: usageOp, apply: func(ctx context.Context) error { return e.settleUsage(ctx, u, bySlice) }})
	}), nil
}

func (e *Engine) settleUsage(ctx context.Context, u *brokerv1.UsageResponse, turns map[protocol.SliceID]protocol.TurnID) error {
	drawn := map[protocol.SliceID]int64{}
	for _, s := range u.Slices {
		drawn[protocol.SliceID(s.SliceId)] = s.DrawnMicroUsd
	}
	ids := make([]protocol.SliceID, 0, len(turns))
	for id := range turns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	_, err := each(ids, func(id protocol.SliceID) (bool, error) {
		return true, e.onTurn(ctx, "usage", turns[id], func(w *turnTx) error { return w.settleUsage(id, drawn[id], u.BootNonce) })
	})
	return err
}

func (w *turnTx) settleUsage(id protocol.SliceID, drawn int64, boot string) error {
	if !w.turn.State.Active() || w.turn.Slice != id {
		return nil
	}
	left, err := w.renewSlice(boot)
	if err != nil {
		return err
	}
	if !left {
		return w.failed("budget_exhausted", "The broker restarted, what the turn had reserved counts as spent, and nothing of its budget is left.")
	}
	if w.turn.Slice == id {
		_, err = w.topUp(drawn, false)
	}
	return err
}

package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// portion is what a turn has at hand: about one model call's worth, an eighth of
// its budget, so that a broker that falls with the whole machine costs the turn no
// more than that; and twice the largest call that was seen, so that the next one
// of its kind fits. What a call finds too small is filled: at once for a turn of
// this server, and for a runner's when the runner says that it is short.
func portion(budget, largest int64) int64 { return max(1, budget/8, 2*largest) }

// nextCeiling tops a slice up when less than half a portion is left in it.
// Reserved plus spent never exceeds the budget. INV-19.
func nextCeiling(ceiling, used, portion, most int64) int64 {
	if ceiling-used >= max(1, portion/2) {
		return ceiling
	}
	return max(ceiling, min(most, used+portion))
}

// draw is a broker's word on one slice.
type draw struct {
	boot  string   // of the broker that says it
	known []string // earlier boots of which it knows every draw
	// total counts open reservations, of which reserved is the sum.
	total, reserved, largest int64
	input, output, calls     int64
	open                     int32 // calls
}

// drawOf reads it; a slice that is not named drew nothing.
func drawOf(u *brokerv1.UsageResponse, id protocol.SliceID) draw {
	d := draw{boot: u.BootNonce, known: u.KnownBoots}
	for _, s := range u.Slices {
		if s.SliceId == id.String() {
			d.total, d.reserved, d.largest = s.DrawnMicroUsd, s.ReservedMicroUsd, s.LargestMicroUsd
			d.input, d.output, d.calls, d.open = s.InputTokens, s.OutputTokens, s.Calls, s.OpenFlows
		}
	}
	return d
}

// spent of a slice that is over: what the broker that drew it knows, or all of it
// when that start of the broker left nothing behind. INV-19.
func (d draw) spent(s policy.Slice) int64 {
	if s.BrokerBoot != d.boot && !slices.Contains(d.known, s.BrokerBoot) {
		return s.CeilingMicroUSD
	}
	return min(s.CeilingMicroUSD, max(s.DrawnMicroUSD, d.total))
}

// reserve makes the turn's slice for one boot of the broker. most is what the
// budget has left for it.
func (w *turnTx) reserve(boot string, ceiling, most int64) error {
	s := policy.Slice{ID: newID[protocol.SliceKind](w.e, w.tx.Now), Tenant: w.turn.Tenant, Turn: w.turn.ID,
		BrokerBoot: boot, CeilingMicroUSD: min(ceiling, most)}
	w.turn.Slice = s.ID
	w.touch()
	w.carry(s, most)
	return w.tx.InsertSlice(s)
}

// carry makes the renewals to come carry a slice.
func (w *turnTx) carry(s policy.Slice, most int64) {
	attempt := w.turn.Attempt
	w.afterCommit(func() { w.e.leases.useSlice(attempt, s, s.CeilingMicroUSD >= most) })
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

// most is what the turn's slice may have at most: the budget without what its
// other slices took.
func (w *turnTx) most() (budget, most int64, err error) {
	snap, err := w.snapshot()
	if err != nil {
		return 0, 0, err
	}
	other, err := w.elsewhere()
	budget = snap.Agent.Limits.MaxCostMicroUSD
	return budget, budget - other, err
}

// topUp raises the slice's ceiling when it runs low, and reports whether it did.
// force is for a request that the broker already refused: it doubles the slice.
func (w *turnTx) topUp(d draw, force bool) (bool, error) {
	s, err := w.tx.Slice(w.turn.Slice)
	if err != nil {
		return false, err
	}
	budget, most, err := w.most()
	if err != nil {
		return false, err
	}
	if planted.Chosen == planted.Budget {
		most = 1 << 62
	}
	known, before := s, s.CeilingMicroUSD
	s = d.take(s)
	s.CeilingMicroUSD = nextCeiling(before, max(s.DrawnMicroUSD, d.total), portion(budget, d.largest), most)
	if force {
		s.CeilingMicroUSD = max(s.CeilingMicroUSD, min(most, 2*before))
	}
	w.carry(s, most)
	if s == known {
		return false, nil
	}
	if err := w.tx.SaveSlice(s); err != nil {
		return false, err
	}
	return s.CeilingMicroUSD != before, w.tally()
}

// renewSlice replaces the slice of a broker that restarted by one of what is left
// of the budget. It reports false when that is nothing.
func (w *turnTx) renewSlice(d draw) (bool, error) {
	old, err := w.tx.Slice(w.turn.Slice)
	if err != nil || old.BrokerBoot == d.boot {
		return err == nil, err
	}
	budget, most, err := w.most()
	if err != nil {
		return false, err
	}
	old = d.end(old, w.tx.Now)
	if err := w.tx.SaveSlice(old); err != nil {
		return false, err
	}
	if err := w.tally(); err != nil {
		return false, err
	}
	left := most - old.DrawnMicroUSD
	if left <= 0 {
		return false, nil
	}
	return true, w.reserve(d.boot, portion(budget, 0), left)
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
	return w.cleanup(policy.CleanupSlice, id.String())
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
	budget, most, err := w.most()
	if err != nil {
		return false, err
	}
	// Of a budget that is used up an empty slice is cut: an approved action needs
	// none of it, and the next model call says what is missing.
	return true, w.reserve(boot, portion(budget, 0), max(0, most))
}

const usageOp = "usage"

// tickUsage asks the broker what open slices drew, tops up those that run low,
// and replaces those of an earlier boot. Those of which a runner says that they
// are too small are asked at once.
func (e *Engine) tickUsage(ctx context.Context) (bool, error) {
	now := time.Now()
	if e.view.boot() == "" || e.busy(usageOp) {
		return false, nil
	}
	bySlice := e.leases.takeShort()
	if len(bySlice) == 0 {
		if !e.pauses.over(usageOp, now) {
			return false, nil
		}
		var err error
		if bySlice, err = e.openSlices(ctx); err != nil {
			return false, err
		}
		e.pauses.set(usageOp, now.Add(e.cfg.Limits.UsageEvery))
	}
	if len(bySlice) == 0 {
		return false, nil
	}
	ids := slices.Sorted(maps.Keys(bySlice))
	return e.cfg.Ops.Start(usageOp, func(ctx context.Context) {
		u, err := e.cfg.Broker.Usage(ctx, ids...)
		if err != nil {
			return // the next pass asks again
		}
		e.settled.put(completion{op: usageOp, apply: func(ctx context.Context) error { return e.settleUsage(ctx, u, bySlice) }})
	}), nil
}

// openSlices of the turns of this replica.
func (e *Engine) openSlices(ctx context.Context) (map[protocol.SliceID]protocol.TurnID, error) {
	out := map[protocol.SliceID]protocol.TurnID{}
	err := e.cfg.Store.View(ctx, store.AsLoop("usage"), func(tx *store.Tx) error {
		turns, err := tx.OwnedTurns(e.cfg.Replica)
		for _, t := range turns {
			if t.Slice != "" {
				out[t.Slice] = t.ID
			}
		}
		return err
	})
	return out, err
}

func (e *Engine) settleUsage(ctx context.Context, u *brokerv1.UsageResponse, turns map[protocol.SliceID]protocol.TurnID) error {
	_, err := each(slices.Sorted(maps.Keys(turns)), func(id protocol.SliceID) (bool, error) {
		return true, e.onTurn(ctx, "usage", turns[id], func(w *turnTx) error { return w.settleUsage(id, drawOf(u, id)) })
	})
	return err
}

func (w *turnTx) settleUsage(id protocol.SliceID, d draw) error {
	switch {
	case !w.turn.State.Active() || w.turn.Slice == "":
		return nil
	case w.turn.Slice != id: // replaced meanwhile; the lease may not know
		return w.carryOn()
	}
	left, err := w.renewSlice(d)
	if err != nil {
		return err
	}
	if !left {
		return w.endOfBudget()
	}
	if w.turn.Slice == id {
		_, err = w.topUp(d, false)
	}
	return err
}

// endOfBudget ends a turn that no other slice can be cut for.
func (w *turnTx) endOfBudget() error {
	return w.endFailed(loop.ReasonBudget, "The broker restarted, what it may have spent of the turn's budget counts as spent, and nothing is left.")
}

// carryOn makes the turn's lease carry the slice that the turn has.
func (w *turnTx) carryOn() error {
	s, err := w.tx.Slice(w.turn.Slice)
	if err != nil {
		return err
	}
	_, most, err := w.most()
	w.carry(s, most)
	return err
}

package engine

import (
	"fmt"
	"strconv"
	"time"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// What a turn used is what the broker counted of its slices, answers that never
// came included; or the loop's own count, where that is more: an answer can be
// here before the next look at the broker. It never falls. It is final once the
// turn has ended and none of its slices is open any more. INV-19.

// settleWithin bounds how long the closing of a slice waits for calls that are
// open: after that their reservations count as spent.
const settleWithin = 30 * time.Second

// take notes on a slice what the broker counted of it. An open call counts when it
// is settled.
func (d draw) take(s policy.Slice) policy.Slice {
	s.DrawnMicroUSD = max(s.DrawnMicroUSD, d.total-d.reserved)
	s.InputTokens, s.OutputTokens = max(s.InputTokens, d.input), max(s.OutputTokens, d.output)
	s.ModelCalls = max(s.ModelCalls, d.calls)
	return s
}

// end closes a slice with all that it can have drawn.
func (d draw) end(s policy.Slice, now time.Time) policy.Slice {
	drawn := d.spent(s)
	s = d.take(s)
	s.DrawnMicroUSD, s.ClosedAt = drawn, now
	return s
}

// settling reports that calls are open on a slice that is being closed: what they
// cost is known in a moment.
func (d draw) settling(s policy.Slice, since, now time.Time) bool {
	return s.BrokerBoot == d.boot && d.open > 0 && now.Before(since.Add(settleWithin))
}

// spend takes the loop's own count.
func (w *turnTx) spend(u *runtimev1.Usage) {
	w.used(u.GetInputTokens(), u.GetOutputTokens(), u.GetCostMicroUsd(), 0)
}

// used raises what the turn used.
func (w *turnTx) used(input, output, cost, calls int64) {
	t := &w.turn
	if input <= t.InputTokens && output <= t.OutputTokens && cost <= t.CostMicroUSD && calls <= t.ModelCalls {
		return
	}
	t.InputTokens, t.OutputTokens = max(t.InputTokens, input), max(t.OutputTokens, output)
	t.CostMicroUSD, t.ModelCalls = max(t.CostMicroUSD, cost), max(t.ModelCalls, calls)
	w.touch()
}

// tally adds up what the broker counted of the turn's slices, and says once, when
// nothing can follow, that this is it.
func (w *turnTx) tally() error {
	all, err := w.tx.SlicesOfTurn(w.turn.ID)
	if err != nil {
		return err
	}
	var input, output, cost, calls int64
	open := false
	for _, s := range all {
		input, output = input+s.InputTokens, output+s.OutputTokens
		cost, calls = cost+s.DrawnMicroUSD, calls+s.ModelCalls
		open = open || s.ClosedAt.IsZero()
	}
	w.used(input, output, cost, calls)
	if open || !w.turn.State.Terminal() || !w.turn.UsageSettledAt.IsZero() {
		return nil
	}
	w.turn.UsageSettledAt = w.tx.Now
	w.touch()
	id := w.turn.ID
	w.afterCommit(func() { w.e.cfg.EndedFunc(id) })
	if len(all) == 0 {
		return nil // it never began
	}
	w.event(session.Event{Type: session.UsageSettled, Data: usageOf(w.turn)})
	return nil
}

// usageOf a turn, as events tell it.
func usageOf(t session.Turn) map[string]string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return map[string]string{
		"input_tokens": number(t.InputTokens), "output_tokens": number(t.OutputTokens),
		"cost_micro_usd": number(t.CostMicroUSD), "model_calls": number(t.ModelCalls),
	}
}

// usageSentence of a turn that ended.
func usageSentence(t session.Turn) string {
	text := fmt.Sprintf("it used %d tokens in and %d out in %d model calls, %.6f USD", t.InputTokens, t.OutputTokens, t.ModelCalls, float64(t.CostMicroUSD)/1e6)
	if t.UsageSettledAt.IsZero() {
		text += "; that is not final yet: the broker still settles it"
	}
	return text
}

// settled is what is known to be used of a turn, as its loop is told; nil: nothing.
func settled(t session.Turn) *runtimev1.Settled {
	if t.InputTokens+t.OutputTokens+t.CostMicroUSD+t.ModelCalls == 0 {
		return nil
	}
	return &runtimev1.Settled{
		Usage:      &runtimev1.Usage{InputTokens: t.InputTokens, OutputTokens: t.OutputTokens, CostMicroUsd: t.CostMicroUSD},
		ModelCalls: int32(min(t.ModelCalls, 1<<31-1)),
	}
}

// watchUsage has the broker asked soon what the turn's slice drew: the attempt
// that drew it is gone, and what it used last came to nobody.
func (w *turnTx) watchUsage() {
	w.afterCommit(func() {
		w.e.pauses.forget(usageOp)
		w.e.hungry.Ring()
	})
}

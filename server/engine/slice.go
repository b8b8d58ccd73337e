package engine

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// closeOp is the one op that closes slices at the broker; what comes meanwhile
// goes with its next run.
const closeOp = "slices"

// closeSlices has the broker refuse further draws on the slices of turns that
// ended or wait for a person, and keeps what they drew. A slice of another boot
// is gone, and counts as spent. INV-18, INV-19.
func (e *Engine) closeSlices(due []policy.Cleanup) bool {
	if len(due) == 0 || e.busy(closeOp) {
		return false
	}
	ids := make([]protocol.SliceID, len(due))
	for i, c := range due {
		ids[i] = protocol.SliceID(c.Subject)
	}
	return e.cfg.Ops.Start(closeOp, func(ctx context.Context) {
		u, err := e.cfg.Broker.CloseSlices(ctx, ids...)
		if ctx.Err() != nil {
			return
		}
		e.settled.put(completion{op: closeOp, apply: func(ctx context.Context) error { return e.slicesClosed(ctx, due, u, err) }})
	})
}

// slicesClosed records the broker's answer, and wakes those that waited for it:
// a turn that rests, and the slices that came meanwhile.
func (e *Engine) slicesClosed(ctx context.Context, due []policy.Cleanup, u *brokerv1.UsageResponse, failure error) error {
	if failure != nil {
		return e.notClosed(ctx, due, failure)
	}
	_, err := spread(e.atOnce, due, func(c policy.Cleanup) (bool, error) { return true, e.sliceClosed(ctx, c, u) })
	if err != nil {
		return err
	}
	e.closed.Ring()
	return nil
}

// notClosed has slices closed later.
func (e *Engine) notClosed(ctx context.Context, due []policy.Cleanup, failure error) error {
	return e.cfg.Store.Update(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		for _, c := range due {
			if err := tx.SaveCleanup(tried(c, tx.Now, "", failure)); err != nil {
				return err
			}
		}
		return nil
	})
}

// sliceClosed takes what a slice drew, together with the end of its cleanup. One
// with open calls is asked again: what they cost is known soon. INV-19.
func (e *Engine) sliceClosed(ctx context.Context, c policy.Cleanup, u *brokerv1.UsageResponse) error {
	id := protocol.SliceID(c.Subject)
	var turn protocol.TurnID
	err := e.cfg.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		s, err := tx.Slice(id)
		turn = s.Turn
		return err
	})
	if err != nil {
		return err
	}
	return e.onTurn(ctx, "cleanup", turn, func(w *turnTx) error {
		s, err := w.tx.Slice(id)
		if err != nil {
			return err
		}
		d := drawOf(u, id)
		if s.ClosedAt.IsZero() && d.settling(s, c.CreatedAt, w.tx.Now) {
			c = unsettled(c, w.tx.Now, d.open)
			w.afterCommit(func() { w.e.pauses.set(closeOp, c.NextAt) })
			return w.tx.SaveCleanup(c)
		}
		if err := w.endSlice(s, d); err != nil {
			return err
		}
		if w.turn.State.Active() {
			w.afterCommit(w.e.rested.Ring)
		}
		return w.tx.SaveCleanup(tried(c, w.tx.Now, fmt.Sprintf("closed at the broker, drawn %d", max(s.DrawnMicroUSD, d.total)), nil))
	})
}

// endSlice closes a slice in the store with what it drew.
func (w *turnTx) endSlice(s policy.Slice, d draw) error {
	if s.ClosedAt.IsZero() {
		if err := w.tx.SaveSlice(d.end(s, w.tx.Now)); err != nil {
			return err
		}
	}
	return w.tally()
}

// Pauses while the last calls of a slice are settled, which takes a moment: the day's
// budget waits for what comes back.
const minSettlePause, maxSettlePause = 50 * time.Millisecond, 2 * time.Second

// unsettled is a cleanup that waits for calls to be settled.
func unsettled(c policy.Cleanup, now time.Time, open int32) policy.Cleanup {
	c.Tries++
	c.NextAt = now.Add(min(maxSettlePause, minSettlePause<<min(c.Tries, 10)))
	c.Evidence = fmt.Sprintf("not yet: %d calls are being settled", open)
	return c
}

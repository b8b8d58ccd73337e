package engine

import (
	"context"
	"fmt"

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
	return e.Ops.Start(closeOp, func(ctx context.Context) {
		u, err := e.Broker.Usage(ctx, true, ids...)
		if ctx.Err() != nil {
			return
		}
		e.settled.put(completion{op: closeOp, apply: func(ctx context.Context) error { return e.slicesClosed(ctx, due, u, err) }})
	})
}

// slicesClosed records the broker's answer, and wakes those that waited for it:
// a turn that rests, and the slices that came meanwhile.
func (e *Engine) slicesClosed(ctx context.Context, due []policy.Cleanup, u *brokerv1.UsageResponse, failure error) error {
	drawn := map[string]int64{}
	for _, s := range u.GetSlices() {
		drawn[s.SliceId] = s.DrawnMicroUsd
	}
	rests := false
	err := e.Store.Update(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		rests = false
		for _, c := range due {
			var evidence string
			if failure == nil {
				turn, drew, err := endSlice(tx, protocol.SliceID(c.Subject), drawn[c.Subject], u.BootNonce)
				if err != nil {
					return err
				}
				t, err := tx.Turn(turn)
				if err != nil {
					return err
				}
				rests = rests || t.State.Active()
				evidence = fmt.Sprintf("closed at the broker, drawn %d", drew)
			}
			if err := tx.SaveCleanup(tried(c, tx.Now, evidence, failure)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.closed.ring()
	if rests {
		e.rested.ring()
	}
	return nil
}

// endSlice closes a slice in the store with what it drew.
func endSlice(tx *store.Tx, id protocol.SliceID, drawn int64, boot string) (turn protocol.TurnID, drew int64, err error) {
	s, err := tx.Slice(id)
	if err != nil || !s.ClosedAt.IsZero() {
		return s.Turn, s.DrawnMicroUSD, err
	}
	if s.BrokerBoot != boot {
		drawn = s.CeilingMicroUSD
	}
	s.DrawnMicroUSD, s.ClosedAt = max(s.DrawnMicroUSD, drawn), tx.Now
	return s.Turn, s.DrawnMicroUSD, tx.SaveSlice(s)
}

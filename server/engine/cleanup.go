package engine

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// tickCleanup carries out what ending transactions asked for, until there is
// evidence that it is done. INV-18.
func (e *Engine) tickCleanup(ctx context.Context) (bool, error) {
	var due []policy.Cleanup
	err := e.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) (err error) {
		due, err = tx.CleanupsDue(100)
		return err
	})
	if err != nil {
		return false, err
	}
	return each(due, func(c policy.Cleanup) (bool, error) {
		switch c.Kind {
		case "slice":
			return e.closeSlice(c), nil
		case "attempt":
			return true, e.cleanAttempt(ctx, c)
		}
		return true, e.cleaned(ctx, c, "", protocol.Errorf(protocol.CodeInternal, "nothing cleans up a %s", c.Kind))
	})
}

// cleaned records the evidence, or when to try again.
func (e *Engine) cleaned(ctx context.Context, c policy.Cleanup, evidence string, failure error) error {
	return e.Store.Update(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		c.Tries++
		if failure == nil {
			c.DoneAt, c.Evidence = tx.Now, evidence
		} else {
			c.NextAt = tx.Now.Add(min(time.Minute, time.Second<<min(c.Tries, 10)))
			c.Evidence = "not yet: " + failure.Error()
		}
		return tx.SaveCleanup(c)
	})
}

// closeSlice has the broker refuse further draws on the slice of a turn that
// ended or waits for a person, and
// keeps what it drew. A slice of another boot is gone, and counts as spent.
func (e *Engine) closeSlice(c policy.Cleanup) bool {
	op, id := "slice/"+c.Subject, protocol.SliceID(c.Subject)
	if e.busy(op) {
		return false
	}
	return e.Ops.Start(op, func(ctx context.Context) {
		u, err := e.Broker.Usage(ctx, true, id)
		if ctx.Err() != nil {
			return
		}
		e.settled.put(completion{op: op, apply: func(ctx context.Context) error {
			if err != nil {
				return e.cleaned(ctx, c, "", err)
			}
			drawn := int64(-1)
			for _, s := range u.Slices {
				if s.SliceId == c.Subject {
					drawn = s.DrawnMicroUsd
				}
			}
			if err := e.endSlice(ctx, id, drawn, u.BootNonce); err != nil {
				return err
			}
			e.rested.ring() // a turn may wait for what it drew
			return e.cleaned(ctx, c, fmt.Sprintf("closed at the broker, drawn %d", drawn), nil)
		}})
	})
}

func (e *Engine) endSlice(ctx context.Context, id protocol.SliceID, drawn int64, boot string) error {
	return e.Store.Update(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		s, err := tx.Slice(id)
		if err != nil || !s.ClosedAt.IsZero() {
			return err
		}
		switch {
		case s.BrokerBoot != boot:
			s.DrawnMicroUSD = s.CeilingMicroUSD
		case drawn > s.DrawnMicroUSD:
			s.DrawnMicroUSD = drawn
		}
		s.ClosedAt = tx.Now
		return tx.SaveSlice(s)
	})
}

// cleanAttempt waits for the machine's own word that the attempt is gone: its
// result, a connect that no longer names it, or the end of the machine. The
// command to stop is in its mailbox.
func (e *Engine) cleanAttempt(ctx context.Context, c policy.Cleanup) error {
	id := protocol.AttemptID(c.Subject)
	var evidence string
	err := e.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		a, err := tx.Attempt(id)
		if err != nil {
			return err
		}
		r, err := tx.Runner(a.Runner)
		if err != nil {
			return err
		}
		records, err := tx.Records(id)
		switch {
		case err != nil:
			return err
		case r.State != execution.RunnerActive:
			evidence = "the runner is " + string(r.State)
		case hasResult(records):
			evidence = "the runner reported its end"
		case e.links.lacks(r.ID, id):
			evidence = "the runner connected and does not hold it"
		}
		return nil
	})
	if err != nil {
		return err
	}
	if evidence == "" {
		return e.cleaned(ctx, c, "", protocol.Errorf(protocol.CodeUnavailable, "the runner has not reported the end of attempt %s", id))
	}
	return e.cleaned(ctx, c, evidence, nil)
}

package engine

import (
	"context"
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
	err := e.cfg.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) (err error) {
		due, err = tx.CleanupsDue(tickBatch)
		return err
	})
	if err != nil {
		return false, err
	}
	var slices []policy.Cleanup
	worked, err := each(due, func(c policy.Cleanup) (bool, error) {
		switch c.Kind {
		case policy.CleanupSlice:
			slices = append(slices, c)
			return false, nil
		case policy.CleanupAttempt:
			return e.cleanAttempt(ctx, c)
		case policy.CleanupSessions:
			return true, e.cleanSessions(ctx, c)
		case policy.CleanupRotation:
			return true, e.cleanRotation(ctx, c)
		}
		return true, e.cleaned(ctx, c, "", protocol.Errorf(protocol.CodeInternal, "nothing cleans up a %s", c.Kind))
	})
	return e.closeSlices(slices) || worked, err
}

// cleaned records the evidence, or when to try again.
func (e *Engine) cleaned(ctx context.Context, c policy.Cleanup, evidence string, failure error) error {
	return e.cfg.Store.Update(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		return tx.SaveCleanup(tried(c, tx.Now, evidence, failure))
	})
}

// Pauses between the tries of one cleanup: what ended holds no authority, so the debt
// may wait for who does not answer.
const minCleanupPause, maxCleanupPause = time.Second, time.Minute

// tried is a cleanup after one more try.
func tried(c policy.Cleanup, now time.Time, evidence string, failure error) policy.Cleanup {
	c.Tries++
	if failure == nil {
		c.DoneAt, c.Evidence = now, evidence
	} else {
		c.NextAt = now.Add(min(maxCleanupPause, minCleanupPause<<min(c.Tries, 10)))
		c.Evidence = "not yet: " + failure.Error()
	}
	return c
}

// cleanAttempt waits for the machine's own word that the attempt is gone: its
// result, a connect that no longer names it, or the end of the machine. The
// command to stop is in its mailbox. What a connect named is known to the replica
// of the connection row alone: another one that has no evidence leaves the cleanup
// to it, and does not put it off.
func (e *Engine) cleanAttempt(ctx context.Context, c policy.Cleanup) (worked bool, err error) {
	id, err := protocol.ParseID[protocol.AttemptKind](c.Subject)
	if err != nil {
		return false, err
	}
	var evidence string
	var elsewhere bool
	err = e.cfg.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) error {
		a, err := tx.Attempt(id)
		if err != nil {
			return err
		}
		r, err := tx.Runner(a.Runner)
		if err != nil {
			return err
		}
		row, err := tx.Connection(r.ID)
		if err != nil && !notFound(err) {
			return err
		}
		elsewhere = err == nil && row.Replica != e.cfg.Replica && !e.replicas.gone(row.Replica)
		records, err := tx.Records(id)
		switch {
		case err != nil:
			return err
		case r.State != execution.RunnerActive:
			evidence = "the runner is " + string(r.State)
		case hasResult(records):
			evidence = "the runner reported its end"
		case !elsewhere && e.links.lacks(r.ID, id):
			evidence = "the runner connected and does not hold it"
		}
		return nil
	})
	switch {
	case err != nil:
		return false, err
	case evidence != "":
		return true, e.cleaned(ctx, c, evidence, nil)
	case elsewhere:
		return false, nil
	}
	return true, e.cleaned(ctx, c, "", protocol.Errorf(protocol.CodeUnavailable, "the runner has not reported the end of attempt %s", id))
}

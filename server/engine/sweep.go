package engine

import (
	"context"
	"time"

	"bivouac/server/store"
)

// Bytes are the artifacts' contents, by digest.
type Bytes interface {
	// Older gives the digests of what was last put before an instant, until each
	// says no.
	Older(before time.Time, each func(digest string) (more bool)) error
	Remove(digest string) error
}

const (
	sweepKey = "sweep"
	// bytesGrace is how long bytes that nobody may read stay: somebody may be
	// uploading them anew, and has no row yet. It is longer than any upload.
	bytesGrace = time.Hour
	// sweepBatch bounds what one pass removes.
	sweepBatch = 500
)

// usageTTL is how long what a day used is kept: quotas ask for the present one.
const usageTTL = 32 * 24 * time.Hour

// tickSweep removes what nobody uses and nobody may read: uploads of which no turn
// came, and the bytes of artifacts without a row, such as those of erased
// sessions. INV-18.
func (e *Engine) tickSweep(ctx context.Context) (bool, error) {
	now := time.Now()
	if e.cfg.Bytes == nil || !e.pauses.over(sweepKey, now) {
		return false, nil
	}
	e.pauses.set(sweepKey, now.Add(e.cfg.Limits.SweepEvery))
	err := e.cfg.Store.Update(ctx, store.AsLoop(sweepKey), func(tx *store.Tx) error {
		if err := e.guardLead(tx); err != nil {
			return err
		}
		if _, err := tx.DropUsage(tx.Now.Add(-usageTTL)); err != nil {
			return err
		}
		_, err := tx.DropUnusedUploads(tx.Now.Add(-e.cfg.Limits.UploadTTL))
		return err
	})
	if err != nil {
		return false, err
	}
	var old []string
	removed := 0
	flush := func() error {
		var unread []string
		if err := e.cfg.Store.View(ctx, store.AsLoop(sweepKey), func(tx *store.Tx) (err error) {
			unread, err = tx.Unread(old)
			return err
		}); err != nil {
			return err
		}
		for _, d := range unread {
			if err := e.cfg.Bytes.Remove(d); err != nil {
				return err
			}
		}
		old, removed = old[:0], removed+len(unread)
		return nil
	}
	var failed error
	err = e.cfg.Bytes.Older(now.Add(-bytesGrace), func(digest string) bool {
		if old = append(old, digest); len(old) == sweepBatch {
			failed = flush()
		}
		return failed == nil && ctx.Err() == nil
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		err = flush()
	}
	if removed > 0 {
		e.cfg.Log.Info("bytes that nobody may read are removed", "count", removed)
	}
	return false, err
}

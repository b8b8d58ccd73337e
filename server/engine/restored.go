package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// clockGap is how far the clocks of server and broker may be apart for a renewal that
// followed a backup to be found. One renewal too many harms nothing.
const clockGap = 5 * time.Minute

// restored says of which moment the broker's grants are, and when they were restored;
// zero: never.
func (v *view) restored() (asOf, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.desc.GetGrantsRestoredUs() == 0 {
		return asOf, at
	}
	return time.UnixMicro(v.desc.GetGrantsAsOfUs()), time.UnixMicro(v.desc.GetGrantsRestoredUs())
}

// tickRestored renews once more what was renewed between the backup of a broker's
// grants and their restore: the broker knows the part that the backup has, which was
// ended, and not the one that is stored here. Each is a rotation like any other, durable
// and told. What was renewed after the restore is left alone, so that a server that
// starts again repeats none. INV-13, INV-18.
func (e *Engine) tickRestored(ctx context.Context) (bool, error) {
	asOf, at := e.view.restored()
	if at.IsZero() || at.Equal(e.mended) {
		return false, nil
	}
	var lost []policy.Grant
	err := e.cfg.Store.Update(ctx, store.AsLoop("restored"), func(tx *store.Tx) (err error) {
		if err := e.guardLead(tx); err != nil {
			return err
		}
		if lost, err = tx.RenewedIn(asOf.Add(-clockGap), at); err != nil {
			return err
		}
		for _, g := range lost {
			if _, err := tx.BeginRotation(g.ID, newID[protocol.CleanupKind](e, tx.Now), tx.Now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	e.mended = at
	if len(lost) > 0 {
		e.cfg.Log.Warn("the broker's grants were restored from a backup; what was renewed since is renewed once more", "grants", len(lost), "backup", asOf, "restored", at)
	}
	return len(lost) > 0, nil
}

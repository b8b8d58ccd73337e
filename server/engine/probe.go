package engine

import (
	"context"
	"time"

	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// probeToken mints, before a revocation, the capability of a turn that runs
// under the grant, for the probe afterwards. Empty: none runs here.
func (e *Engine) probeToken(ctx context.Context, g policy.Grant) string {
	var running []session.Turn
	err := e.cfg.Store.View(ctx, store.AsLoop("probe"), func(tx *store.Tx) (err error) {
		running, err = tx.OwnedTurns(e.cfg.Replica)
		return err
	})
	if err != nil {
		return ""
	}
	for _, t := range running {
		if t.Principal != g.Principal || t.Placement != session.PlacementService {
			continue
		}
		a, err := e.authorityOf(ctx, t)
		if err != nil || a.snap.Grant != g.ID {
			continue
		}
		if token, err := e.mint(a, time.Now(), a.forModel); err == nil {
			return token
		}
	}
	return ""
}

// authorityOf reads the authority of a turn as it stands.
func (e *Engine) authorityOf(ctx context.Context, t session.Turn) (a *authority, err error) {
	err = e.cfg.Store.View(ctx, store.AsLoop("authority"), func(tx *store.Tx) (err error) {
		a, err = e.holdTurn(tx, t).authority()
		return err
	})
	return a, err
}

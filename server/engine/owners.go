package engine

import (
	"context"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// owned are the turns that this incarnation of the replica drives. A turn whose
// owner row names the replica but which is not here was driven by an earlier
// process: it is taken over under a higher fence.
type owned struct {
	set[protocol.TurnID]

	mu    sync.Mutex // guards sweep
	sweep int64
}

func newOwned() *owned { return &owned{sweep: -1} }

func (o *owned) swept() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sweep
}

func (o *owned) sweptAt(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sweep = n
}

// tickTakeover takes over the turns of a replica that is gone, and those of this
// replica's earlier process at once.
func (e *Engine) tickTakeover(ctx context.Context) (bool, error) {
	var orphans []session.Turn
	err := e.cfg.Store.View(ctx, store.AsLoop("takeover"), func(tx *store.Tx) error {
		orphans = nil
		found, err := tx.OrphanedTurns(tickBatch) // of replicas that have no row any more
		if err != nil {
			return err
		}
		for _, r := range append(e.replicas.missing(), execution.Replica{ID: e.cfg.Replica}) {
			turns, err := tx.OwnedTurns(r.ID)
			if err != nil {
				return err
			}
			found = append(found, turns...)
		}
		for _, t := range found {
			if t.Owner == e.cfg.Replica && !e.owned.has(t.ID) || e.replicas.gone(t.Owner) {
				orphans = append(orphans, t)
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return each(orphans, func(t session.Turn) (bool, error) { return true, e.takeOver(ctx, t) })
}

// takeOver makes this incarnation the owner, under a higher fence: what the
// earlier one still has under way changes nothing any more (INV-3), and its
// capabilities are void. The other ticks go on from what is stored.
func (e *Engine) takeOver(ctx context.Context, seen session.Turn) error {
	var call protocol.CallID
	err := e.onTurn(ctx, "takeover", seen.ID, func(w *turnTx) (err error) {
		if !w.turn.State.Active() || w.turn.OwnerFence != seen.OwnerFence {
			return protocol.Errorf(protocol.CodeConflict, "turn %s moved on", seen.ID)
		}
		if err := e.stillGone(w.tx, seen.Owner); err != nil {
			return err
		}
		if w.turn.OwnerFence, err = w.turn.OwnerFence.Next(w.tx.Epoch()); err != nil {
			return err
		}
		w.turn.Owner = e.cfg.Replica
		w.touch()
		w.tx.Wake(store.TopicActions) // its intents are for this replica to send
		w.tx.Wake(store.TopicApprovals)
		call = w.turn.ModelCall
		if w.turn.Placement != session.PlacementService {
			return nil // its capabilities are the attempt's
		}
		_, err = w.tx.AddFloor(policy.Floor{Kind: policy.FloorTurn, ID: w.turn.ID.String(),
			Minimum: int64(w.turn.OwnerFence), At: w.tx.Now, ExpiresAt: w.tx.Now.Add(floorTTL)})
		return err
	})
	if err != nil {
		return err
	}
	e.owned.keep(seen.ID)
	if call != "" {
		e.due.add(seen.ID, call)
	}
	e.doubts.Ring()
	e.cfg.Log.Info("turn taken over", "turn", seen.ID, "from", seen.Owner, "state", seen.State)
	return nil
}

// stillGone refuses a take-over from a replica that gave a sign meanwhile.
func (e *Engine) stillGone(tx *store.Tx, owner protocol.ReplicaID) error {
	if owner == e.cfg.Replica {
		return nil
	}
	r, err := tx.Replica(owner)
	if notFound(err) {
		return nil
	}
	if err == nil && r.Beat != e.replicas.beat(owner) {
		return protocol.Errorf(protocol.CodeConflict, "replica %s lives", owner)
	}
	return err
}

// tickOwners gives this replica's sign of life, keeps the rows that say who drives
// which turn and who talks to which runner, and looks who else is there. It is due
// by time alone, and has worked when this replica is there or leads from now on.
func (e *Engine) tickOwners(ctx context.Context) (bool, error) {
	sign, renew := e.replicas.due()
	if !sign {
		return false, nil
	}
	begun, first := e.cfg.Elapsed(), !e.replicas.here()
	err := e.sign(ctx, renew)
	var led bool
	if err == nil {
		e.replicas.gave(begun, e.cfg.Limits.renewRows(), renew)
		led, err = e.look(ctx)
	}
	if err != nil {
		e.replicas.postpone()
	}
	return led || first && err == nil, err
}

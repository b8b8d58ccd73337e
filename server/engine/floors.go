package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/capability"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// floors is what this replica knows was taken back: a copy of the feed's floors
// that costs no read for each renewal. A revocation that is made here is in the
// copy before it is in the store, so that nothing is minted after the commit;
// those of other replicas come by the floors tick. INV-13.
type floors struct {
	wake op.Bell

	mu      sync.Mutex // guards below
	seq     int64
	minimum map[floorKey]policy.Floor
	// taken counts floors that end running work, not those of what ended itself.
	taken int64
}

type floorKey struct {
	kind policy.FloorKind
	id   string
}

func newFloors() *floors {
	return &floors{wake: op.NewBell(), minimum: map[floorKey]policy.Floor{}}
}

// raise makes floors count from now on, and returns how to take back those that
// were new, for when the store refuses them.
func (f *floors) raise(these ...policy.Floor) (undo func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := map[floorKey]policy.Floor{}
	for _, fl := range these {
		k := floorKey{fl.Kind, fl.ID}
		if old := f.minimum[k]; old.Minimum < fl.Minimum {
			before[k], f.minimum[k] = old, fl
			if ends(fl.Kind) {
				f.taken++
			}
		}
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for k, old := range before {
			if old.ID == "" {
				delete(f.minimum, k)
			} else {
				f.minimum[k] = old
			}
		}
	}
}

// ends reports floors under which running work must end.
func ends(k policy.FloorKind) bool { return k != policy.FloorTurn && k != policy.FloorAttempt }

// below finds what was taken back of a capability.
func (f *floors) below(kind policy.FloorKind, id string, value int64) bool {
	return id != "" && value < f.minimum[floorKey{kind, id}].Minimum
}

// covers refuses a mint under anything that was taken back.
func (f *floors) covers(c capability.Claims) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.below(policy.FloorGrant, c.Grant.String(), 0):
		return grantRevoked(c.Grant)
	case f.below(policy.FloorPrincipal, c.Principal.String(), 0):
		return principalDisabled
	case f.below(policy.FloorSession, c.Session.String(), 0):
		return sessionRevoked
	case f.below(policy.FloorInstance, c.Instance.String(), c.Generation):
		return instanceRecreated
	case f.below(policy.FloorRunner, c.Presenter, 0):
		return runnerRevoked
	case f.below(policy.FloorTurn, c.Turn.String(), int64(c.Fence)) && c.Attempt == "":
		return turnTakenOver
	case f.below(policy.FloorAttempt, c.Attempt.String(), int64(c.Fence)):
		return workTakenOver
	}
	return nil
}

// revoked reports a grant that was taken back.
func (f *floors) revoked(id protocol.GrantID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.below(policy.FloorGrant, id.String(), 0)
}

func (f *floors) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq
}

// learn takes floors of the store in, and forgets those that no living
// capability can be below.
func (f *floors) learn(these []policy.Floor, seq int64, now time.Time) {
	f.raise(these...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq = max(f.seq, seq)
	for k, fl := range f.minimum {
		if !fl.ExpiresAt.IsZero() && now.After(fl.ExpiresAt) {
			delete(f.minimum, k)
		}
	}
	f.wake.Ring()
}

// tickFloors reads what was taken back since the last look.
func (e *Engine) tickFloors(ctx context.Context) (bool, error) {
	const page = 1000
	var news []policy.Floor
	var newest int64
	var now time.Time
	err := e.cfg.Store.View(ctx, store.AsLoop("floors"), func(tx *store.Tx) (err error) {
		now = tx.Now
		news, newest, err = tx.Floors(e.floors.position(), page)
		return err
	})
	if err != nil || len(news) == 0 {
		return false, err
	}
	if len(news) == page {
		newest = news[page-1].Seq
	}
	e.floors.learn(news, newest, now)
	return len(news) == page, nil
}

// tickRevoked ends the turns of this replica whose authority was taken back. The
// revocation does it at once; this is for what another replica recorded, and for
// a server that stopped in between.
func (e *Engine) tickRevoked(ctx context.Context) (bool, error) {
	e.floors.mu.Lock()
	seen := e.floors.taken
	e.floors.mu.Unlock()
	if seen == e.owned.swept() {
		return false, nil
	}
	worked, err := e.endTaken(ctx)
	if err == nil {
		e.owned.sweptAt(seen)
	}
	return worked, err
}

// endTaken ends every owned turn that has lost its authority.
func (e *Engine) endTaken(ctx context.Context) (bool, error) {
	var turns []session.Turn
	err := e.cfg.Store.View(ctx, store.AsLoop("revoked"), func(tx *store.Tx) (err error) {
		turns, err = tx.OwnedTurns(e.cfg.Replica)
		return err
	})
	if err != nil {
		return false, err
	}
	return each(turns, func(t session.Turn) (worked bool, err error) {
		err = e.onTurn(ctx, "revoked", t.ID, func(w *turnTx) error {
			worked, err = w.endIfTaken()
			return err
		})
		return worked, err
	})
}

// endIfTaken ends the turn when its authority was taken back.
func (w *turnTx) endIfTaken() (bool, error) {
	if !w.turn.State.Active() {
		return false, nil
	}
	snap, err := w.snapshot()
	if err != nil {
		return false, err
	}
	var t *taken
	if err := standing(w.tx, w.turn, snap); errors.As(err, &t) {
		return true, w.endFailed(t.reason, t.message)
	} else if err != nil {
		return false, err
	}
	return false, nil
}

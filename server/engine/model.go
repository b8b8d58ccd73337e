package engine

import (
	"context"
	"errors"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// modelOp is the key of the op of one model call.
func modelOp(call protocol.CallID) string { return "model/" + call.String() }

// modelScan is the key of the pause between two scans of all owned turns.
const modelScan = "scan/model"

// tickModel starts the op of every model call that is in flight by the store and
// not here: after its step was committed, after a pause, and after a restart.
func (e *Engine) tickModel(ctx context.Context) (bool, error) {
	now := time.Now()
	scan := e.pauses.over(modelScan, now)
	var turns []session.Turn
	err := e.Store.View(ctx, store.AsLoop("model"), func(tx *store.Tx) (err error) {
		if turns = nil; scan {
			turns, err = tx.OwnedTurns(e.Replica)
			return err
		}
		for _, id := range e.due.list() {
			t, err := tx.Turn(id)
			if err != nil {
				return err
			}
			turns = append(turns, t)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if scan {
		e.pauses.set(modelScan, now.Add(e.Limits.Poll))
	}
	return each(turns, func(t session.Turn) (bool, error) {
		op := modelOp(t.ModelCall)
		switch {
		case t.State != session.RunningModel || t.Placement != session.PlacementService || t.ModelCall == "" ||
			t.Owner != e.Replica || !e.owned.has(t.ID) || e.busy(op):
			e.due.drop(t.ID)
			return false, nil
		case !e.pauses.over(op, now):
			return false, nil
		}
		return e.startModel(ctx, t)
	})
}

// startModel mints a capability for one call and starts it. Without authority
// the turn ends; without a signing key the call is tried again.
func (e *Engine) startModel(ctx context.Context, t session.Turn) (bool, error) {
	request, err := modelRequest(t)
	if err != nil {
		return false, err
	}
	a, err := e.authorityOf(ctx, t)
	var token string
	if err == nil {
		token, err = e.mint(a, time.Now(), a.forModel)
	}
	if err != nil {
		return e.notMinted(ctx, t.ID, modelOp(t.ModelCall), err)
	}
	e.pauses.forget(modelOp(t.ModelCall))
	return e.Ops.Start(modelOp(t.ModelCall), func(ctx context.Context) {
		done, err := e.Broker.CallModel(ctx, &brokerv1.CallModelRequest{
			Capability: token, CallId: t.ModelCall.String(), Request: request,
		}, func(delta string) { e.live.Publish(t.Session, delta) })
		if ctx.Err() != nil {
			return // stopped: the turn ended, or the server does; the store knows more
		}
		fault.Here(fault.ServerModelAnswered)
		e.settled.put(completion{op: modelOp(t.ModelCall), apply: func(ctx context.Context) error {
			return e.settleModel(ctx, t, done, err)
		}})
	}), nil
}

// modelRequest is the outstanding request: a function of the stored state.
func modelRequest(t session.Turn) (*runtimev1.ModelRequest, error) {
	state, err := readLoop(t)
	if err != nil {
		return nil, err
	}
	_, commands := loop.Step(state, loop.Begin{})
	for _, c := range commands {
		if call, ok := c.(loop.CallModel); ok {
			return call.Request, nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeDataLoss, "turn %s runs the model, and its loop waits for none", t.ID)
}

// authorityOf reads the authority of a turn as it stands.
func (e *Engine) authorityOf(ctx context.Context, t session.Turn) (a *authority, err error) {
	snap, err := policy.DecodeSnapshot(t.Snapshot, t.SnapshotDigest)
	if err != nil {
		return nil, err
	}
	err = e.Store.View(ctx, store.AsLoop("authority"), func(tx *store.Tx) (err error) {
		a, err = readAuthority(tx, t, &snap)
		return err
	})
	return a, err
}

// notMinted ends a turn whose authority was taken back, and otherwise waits.
func (e *Engine) notMinted(ctx context.Context, id protocol.TurnID, op string, err error) (bool, error) {
	var t *taken
	if !errors.As(err, &t) {
		e.pauses.again(op, time.Now(), 200*time.Millisecond, 5*time.Second)
		return false, err
	}
	return true, e.onTurn(ctx, "model", id, func(w *turnTx) error {
		if !w.turn.State.Active() {
			return nil
		}
		return w.failed(t.reason, t.message)
	})
}

// settleModel gives the loop the answer of the call that is in flight. An answer
// of an earlier call or owner is dropped. INV-3.
func (e *Engine) settleModel(ctx context.Context, started session.Turn, done *runtimev1.ModelDone, failure error) error {
	return e.onTurn(ctx, "settle", started.ID, func(w *turnTx) error {
		if w.turn.State != session.RunningModel || w.turn.ModelCall != started.ModelCall || w.turn.OwnerFence != started.OwnerFence {
			return protocol.Errorf(protocol.CodeStaleFence, "the answer of call %s is late: turn %s is %s", started.ModelCall, w.turn.ID, w.turn.State)
		}
		w.turn.ModelCall = ""
		w.touch()
		if failure == nil {
			return w.feed(loop.ModelAnswered{Done: done})
		}
		return w.modelFailed(failure)
	})
}

// modelFailed gives the loop a failure with its code. A slice that ran dry while
// the turn has budget left is filled, and the same call made again.
func (w *turnTx) modelFailed(failure error) error {
	var e *protocol.Error
	if !errors.As(failure, &e) {
		e = protocol.Errorf(protocol.CodeUnavailable, "%w", failure)
	}
	w.event(session.Event{Type: session.ModelFailed, Data: map[string]string{"code": string(e.Code)}})
	// The broker may know of a revocation before the work under it was ended here.
	if ended, err := w.endIfTaken(); ended || err != nil {
		return err
	}
	if e.Code == protocol.CodeBudgetExhausted {
		if raised, err := w.topUp(draw{}, true); raised || err != nil {
			if err != nil {
				return err
			}
			return w.feed(loop.Begin{})
		}
	}
	return w.feed(loop.ModelFailed{Err: e})
}

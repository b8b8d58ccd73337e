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
	if e.pauses.over(modelScan, now) {
		if err := e.scanModels(ctx); err != nil {
			return false, err
		}
		e.pauses.set(modelScan, now.Add(e.cfg.Limits.Poll))
	}
	return each(e.due.list(), func(d dueCall) (bool, error) {
		switch op := modelOp(d.call); {
		case e.busy(op):
			e.due.drop(d.turn, d.call)
			return false, nil
		case !e.pauses.over(op, now):
			return false, nil
		}
		return e.startModel(ctx, d)
	})
}

// scanModels finds the calls that nobody announced.
func (e *Engine) scanModels(ctx context.Context) error {
	return e.cfg.Store.View(ctx, store.AsLoop("model"), func(tx *store.Tx) error {
		turns, err := tx.OwnedTurns(e.cfg.Replica)
		for _, t := range turns {
			if e.callsModel(t) && !e.busy(modelOp(t.ModelCall)) {
				e.due.add(t.ID, t.ModelCall)
			}
		}
		return err
	})
}

// callsModel reports a turn whose outstanding model call is this replica's to make.
func (e *Engine) callsModel(t session.Turn) bool {
	return t.State == session.RunningModel && t.Placement == session.PlacementService && t.ModelCall != "" &&
		t.Owner == e.cfg.Replica && e.owned.has(t.ID)
}

// callsOf is the topic of model calls that another replica made due for the owner
// of their turn.
func callsOf(r protocol.ReplicaID) store.Topic { return "calls " + store.Topic(r) }

// tickCalls lets the model tick look at all turns of this replica, for what
// others made due.
func (e *Engine) tickCalls(context.Context) (bool, error) {
	e.pauses.forget(modelScan)
	e.due.bell.Ring()
	return false, nil
}

// startModel mints a capability for one call and starts it. Without authority
// the turn ends; without a signing key the call is tried again. That the call is
// outstanding is read after it was seen to have no op: read before, it could have
// been answered meanwhile, and would be made twice.
func (e *Engine) startModel(ctx context.Context, d dueCall) (bool, error) {
	var t session.Turn
	var a *authority
	err := e.cfg.Store.View(ctx, store.AsLoop("model"), func(tx *store.Tx) (err error) {
		if t, err = tx.Turn(d.turn); err != nil || t.ModelCall != d.call || !e.callsModel(t) {
			return err
		}
		a, err = e.holdTurn(tx, t).authority()
		return err
	})
	if err == nil && a == nil {
		e.due.drop(d.turn, d.call)
		return false, nil
	}
	var token string
	if err == nil {
		token, err = e.mint(a, time.Now(), a.forModel)
	}
	if err != nil {
		return e.notMinted(ctx, d, err)
	}
	request, err := modelRequest(t)
	if err != nil {
		return false, err
	}
	op := modelOp(d.call)
	e.pauses.forget(op)
	return e.cfg.Ops.Start(op, func(ctx context.Context) {
		done, err := e.cfg.Broker.CallModel(ctx, &brokerv1.CallModelRequest{
			Capability: token, CallId: t.ModelCall.String(), Request: request,
		}, func(delta string) { e.live.Publish(t.Session, delta) })
		answer := modelAnswer{done: done, failure: err}
		if protocol.DetailOf(err) == protocol.DetailSliceBoot {
			answer.usage, _ = e.cfg.Broker.Usage(ctx, t.Slice) // without it the failure is as any other
		}
		if ctx.Err() != nil {
			return // stopped: the turn ended, or the server does; the store knows more
		}
		fault.Here(fault.ServerModelAnswered)
		e.settled.put(completion{op: op, apply: func(ctx context.Context) error {
			return e.settleModel(ctx, t, answer)
		}})
	}), nil
}

// modelAnswer is what became of one model call.
type modelAnswer struct {
	done    *runtimev1.ModelDone
	failure error
	// usage is the broker's word on the slice, when the failure is that it was cut
	// for another start.
	usage *brokerv1.UsageResponse
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

// Bounds of the pause before a call without a capability is tried again.
const (
	minMintPause = 200 * time.Millisecond
	maxMintPause = 5 * time.Second
)

// notMinted ends a turn whose authority was taken back, and otherwise waits.
func (e *Engine) notMinted(ctx context.Context, d dueCall, err error) (bool, error) {
	var gone *taken
	if !errors.As(err, &gone) {
		e.pauses.again(modelOp(d.call), time.Now(), minMintPause, maxMintPause)
		return false, err
	}
	return true, e.onTurn(ctx, "model", d.turn, func(w *turnTx) error {
		if !w.turn.State.Active() || w.turn.ModelCall != d.call {
			return nil
		}
		return w.endFailed(gone.reason, gone.message)
	})
}

// settleModel gives the loop the answer of the call that is in flight. An answer
// of an earlier call or owner is dropped. INV-3.
func (e *Engine) settleModel(ctx context.Context, started session.Turn, a modelAnswer) error {
	return e.onTurn(ctx, "settle", started.ID, func(w *turnTx) error {
		if w.turn.State != session.RunningModel || w.turn.ModelCall != started.ModelCall || w.turn.OwnerFence != started.OwnerFence {
			return protocol.Errorf(protocol.CodeStaleFence, "the answer of call %s is late: turn %s is %s", started.ModelCall, w.turn.ID, w.turn.State)
		}
		w.turn.ModelCall = ""
		w.touch()
		if a.failure == nil {
			return w.feed(loop.ModelAnswered{Done: a.done})
		}
		return w.modelFailed(a.failure, started.Slice, a.usage)
	})
}

// modelFailed gives the loop a failure with its code. A slice that ran dry while
// the turn has budget left is filled, one of an earlier start of the broker is
// replaced, and the same call made again.
func (w *turnTx) modelFailed(failure error, used protocol.SliceID, u *brokerv1.UsageResponse) error {
	var e *protocol.Error
	if !errors.As(failure, &e) {
		e = protocol.Errorf(protocol.CodeUnavailable, "%w", failure)
	}
	data := map[string]string{"code": string(e.Code)}
	if e.Detail == protocol.DetailUnreachable {
		data[session.DataUnreachable] = "broker"
		from := *e
		from.Message = "the server " + e.Message // a machine says the same of itself
		e = &from
	}
	w.event(session.Event{Type: session.ModelFailed, Data: data})
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
	if e.Detail == protocol.DetailSliceBoot {
		if another, err := w.nextBoot(used, u); another || err != nil {
			return err
		}
	}
	return w.feed(loop.ModelFailed{Err: e})
}

// nextBootIn is the least time between two starts of a broker that cost a turn no
// try: one whose answers name ever other starts is as one that does not answer.
const nextBootIn = 500 * time.Millisecond

// nextBoot makes a call again that the broker refused because its slice was cut
// for another start. The old slice is settled by what is known of it, and a new
// one cut, once for each start: the provider was not asked, so this is none of the
// tries. It reports false when there is nothing new. INV-7, INV-19.
func (w *turnTx) nextBoot(used protocol.SliceID, u *brokerv1.UsageResponse) (bool, error) {
	pace := "boot/" + w.turn.ID.String()
	if !w.e.pauses.over(pace, w.tx.Now) {
		return false, nil
	}
	if u != nil && w.turn.Slice == used {
		left, err := w.renewSlice(drawOf(u, used))
		if err != nil {
			return false, err
		}
		if !left {
			return true, w.endOfBudget()
		}
	}
	if w.turn.Slice == used {
		return false, nil
	}
	if err := w.feed(loop.Begin{}); err != nil {
		return false, err
	}
	again := modelOp(w.turn.ModelCall)
	w.afterCommit(func() {
		w.e.pauses.set(pace, w.tx.Now.Add(nextBootIn))
		w.e.pauses.forget(again) // the pause of the try before was kept
		w.e.due.bell.Ring()
	})
	return true, nil
}

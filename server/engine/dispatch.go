package engine

import (
	"context"
	"errors"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/session"
	"bivouac/server/store"
)

// dispatchBatch is how many intents one pass sends: each begins an op or an attempt, and
// those that wait are looked at again before a long line of them is through.
const dispatchBatch = 64

// tickDispatch sends committed intents on their way. INV-4: it reads them from
// the store, so nothing is dispatched that is not durable.
func (e *Engine) tickDispatch(ctx context.Context) (bool, error) {
	var intents []session.Action
	err := e.cfg.Store.View(ctx, store.AsLoop("dispatch"), func(tx *store.Tx) (err error) {
		intents, err = tx.IntentsOwned(e.cfg.Replica, dispatchBatch)
		return err
	})
	if err != nil {
		return false, err
	}
	return spread(e.atOnce, intents, func(a session.Action) (bool, error) {
		if !e.owned.has(a.Turn) {
			return false, nil // not taken over yet by this incarnation
		}
		fault.Here(fault.ServerIntentCommitted)
		return true, e.dispatch(ctx, a)
	})
}

// dispatch marks one intent as on its way, in the transaction that checks its
// authority again; the broker is called after the commit, a runner by its
// attempt.
func (e *Engine) dispatch(ctx context.Context, intent session.Action) error {
	var send *gatewayCall
	e.calls.keep(intent.ID)
	err := e.onTurn(ctx, "dispatch", intent.Turn, func(w *turnTx) (err error) {
		send = nil
		a, err := w.tx.Action(intent.ID)
		if err != nil {
			return err
		}
		if a.State != session.Intended || !w.turn.State.Active() || w.turn.Owner != e.cfg.Replica {
			return protocol.Errorf(protocol.CodeConflict, "action %s is %s", a.ID, a.State)
		}
		send, err = w.dispatch(a)
		var t *taken
		if errors.As(err, &t) {
			return w.endFailed(t.reason, t.message)
		}
		return err
	})
	if err != nil || send == nil {
		e.calls.forget(intent.ID)
		return err
	}
	e.startCall(send)
	return nil
}

func (w *turnTx) dispatch(a session.Action) (*gatewayCall, error) {
	if refusal, err := w.reauthorise(a); err != nil {
		return nil, err
	} else if refusal != nil {
		return nil, w.settle(a, a.Fence, outcome{event: session.ActionDeny, result: refusal})
	}
	next, err := a.Step(session.ActionDispatch, w.tx.Now)
	if err != nil {
		return nil, err
	}
	next.Fence = w.turn.OwnerFence
	var send *gatewayCall
	if a.Placement == runtimev1.Placement_PLACEMENT_DEVICE {
		if next, err = w.queueDevice(next); err != nil {
			return nil, err
		}
	} else if send, err = w.prepareCall(next); err != nil {
		return nil, w.withoutGrant(a, err)
	}
	if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
		return nil, err
	}
	if w.turn.State == session.WaitingAction {
		if err := w.step(session.TurnDispatch); err != nil {
			return nil, err
		}
	}
	told := map[string]string{session.DataCallID: a.CallID, session.DataAlias: a.Alias, "tool": a.Tool, "destination": a.Destination}
	if send != nil && send.grant != "" {
		told["grant"] = send.grant.String()
	}
	w.event(session.Event{Type: session.ToolDispatched, Action: a.ID, Attempt: next.Attempt, Approval: a.Approval, Data: told})
	w.afterCommit(func() {
		w.e.cfg.Log.Info("action dispatched", "turn", a.Turn, "action", a.ID, "tool", a.Tool, "attempt", next.Attempt)
	})
	return send, nil
}

// reauthorise checks a call once more: what it stands on, the tool against what
// may be used now, and what became unknown since. INV-5, INV-10, INV-13.
func (w *turnTx) reauthorise(a session.Action) (*runtimev1.ToolResult, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	if err := standing(w.tx, w.turn, snap); err != nil {
		return nil, err
	}
	tool, err := w.tool(a.Alias)
	if err != nil {
		return nil, err
	}
	machines, err := machinesOf(w.tx, w.turn.Principal)
	if err != nil {
		return nil, err
	}
	if err := snap.Reauthorise(tool, machines); err != nil {
		return refuse(a.CallID, statusDenied, protocol.CodePolicyDenied, err.Error()), nil
	}
	return w.heldBack(a)
}

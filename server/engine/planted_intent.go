//go:build bug_no_intent

package engine

import (
	"context"

	"bivouac/edge/fault"
	"bivouac/server/session"
)

const plantedNoIntent = true

// sendUnrecorded sends an action that the store knows nothing of, and writes its
// intent together with its outcome.
func (w *turnTx) sendUnrecorded(a session.Action) error {
	send, err := w.prepareCall(a)
	if err != nil {
		return err
	}
	e := w.e
	w.afterCommit(func() {
		e.cfg.Ops.Start(invokeOp(a.ID), func(ctx context.Context) {
			resp, failure := e.cfg.Broker.Invoke(ctx, send.request)
			fault.Here(fault.ServerOutcomeReceived)
			e.settled.put(completion{op: invokeOp(a.ID), apply: func(ctx context.Context) error {
				err := e.onTurn(ctx, "planted", a.Turn, func(w *turnTx) error {
					if err := w.tx.InsertAction(a); err != nil {
						return err
					}
					next, err := a.Step(session.ActionDispatch, w.tx.Now)
					if err != nil {
						return err
					}
					if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
						return err
					}
					return w.step(session.TurnDispatch)
				})
				if err != nil {
					return err
				}
				return e.settleCall(ctx, a, resp, failure)
			}})
		})
	})
	return nil
}

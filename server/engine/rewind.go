package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

const (
	reasonRestored = "restored"
	saysRestored   = "The server was restored from a backup. This turn was open then, and may have run since: look at what it did before you send it again."
)

// Rewind settles what a restored store believes to be open. What waited may have
// run since the copy was made, and what was intended may have been sent: nothing of
// it begins again. Turns end; actions that left, or may have, become RECONCILING,
// so that their outcome is sought and none is sent a second time (INV-5). It does
// nothing to a store that was not restored, and may be repeated.
func (e *Engine) Rewind(ctx context.Context) (turns int, err error) {
	for {
		var open []protocol.TurnID
		var rewound bool
		err := e.cfg.Store.View(ctx, store.AsLoop("rewind"), func(tx *store.Tx) (err error) {
			rewound, open, err = tx.Rewound(tickBatch)
			return err
		})
		if err != nil || !rewound {
			return turns, err
		}
		if len(open) == 0 {
			return turns, e.cfg.Store.Update(ctx, store.AsLoop("rewind"), func(tx *store.Tx) error { return tx.Settled() })
		}
		for _, id := range open {
			if err := e.onTurn(ctx, "rewind", id, (*turnTx).rewind); err != nil {
				return turns, err
			}
			turns++
		}
	}
}

func (w *turnTx) rewind() error {
	actions, err := w.tx.ActionsOfTurn(w.turn.ID)
	if err != nil {
		return err
	}
	for _, a := range actions {
		if a.State != session.Intended && a.State != session.Dispatched {
			continue
		}
		if err := w.rewindAction(a); err != nil {
			return err
		}
	}
	return w.endFailed(reasonRestored, saysRestored)
}

// rewindAction takes an intent for sent: the copy may be older than its dispatch.
// An attempt that nobody had claimed then is offered to nobody again; one that was
// held keeps its late result as evidence.
func (w *turnTx) rewindAction(a session.Action) error {
	if a.State == session.Intended {
		next, err := a.Step(session.ActionDispatch, w.tx.Now)
		if err != nil {
			return err
		}
		if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
			return err
		}
		a = next
	}
	next, err := a.Step(session.ActionDoubt, w.tx.Now)
	if err != nil {
		return err
	}
	next.Evidence = joinEvidence(a.Evidence, "open when the backup was made")
	if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil || a.Attempt == "" {
		return err
	}
	attempt, err := w.tx.Attempt(a.Attempt)
	if err != nil || attempt.State.Terminal() || attempt.State.Held() {
		return err
	}
	return w.endAttempt(attempt, execution.AttemptCancel, reasonRestored, "the server was restored from a backup")
}

package engine

import (
	"context"
	"maps"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// deterministic is the one encoding of stored messages.
var deterministic = proto.MarshalOptions{Deterministic: true}

// turnTx is one turn inside one transaction: what it was, what it becomes, the
// events that say so, and what happens after the commit. Every write of it is
// guarded by the state and the owner fence that were read. INV-3.
type turnTx struct {
	e    *Engine
	tx   *store.Tx
	turn session.Turn
	// prior and fence are what the store holds now.
	prior session.TurnState
	fence protocol.Fence
	dirty bool
	// counted are the tokens of the turn that the day has.
	counted int64
	events  []session.Event
	after   []func()

	snap *policy.Snapshot
	loop *runtimev1.LoopState
	// settling is the action whose result the loop is being given.
	settling protocol.ActionID
	// canPark: the runner that asks for a tool can end its attempt while a person decides.
	canPark bool
}

// openTurn reads a turn for a change.
func (e *Engine) openTurn(tx *store.Tx, id protocol.TurnID) (*turnTx, error) {
	t, err := tx.Turn(id)
	if err != nil {
		return nil, err
	}
	return e.holdTurn(tx, t), nil
}

func (e *Engine) holdTurn(tx *store.Tx, t session.Turn) *turnTx {
	return &turnTx{e: e, tx: tx, turn: t, prior: t.State, fence: t.OwnerFence, counted: tokensOf(t)}
}

// openAttempt opens the turn that an attempt works for.
func (e *Engine) openAttempt(tx *store.Tx, id protocol.AttemptID) (*turnTx, error) {
	t, err := tx.TurnOfAttempt(id)
	if err != nil {
		return nil, err
	}
	return e.holdTurn(tx, t), nil
}

// onTurn changes one turn in a transaction of its own.
func (e *Engine) onTurn(ctx context.Context, loop string, id protocol.TurnID, fn func(w *turnTx) error) error {
	return e.change(ctx, loop, func(tx *store.Tx) (*turnTx, error) { return e.openTurn(tx, id) }, fn)
}

// onAttempt changes one attempt and the turn that it works for.
func (e *Engine) onAttempt(ctx context.Context, loop string, id protocol.AttemptID, fn func(w *turnTx, a execution.Attempt) error) error {
	var a execution.Attempt
	return e.change(ctx, loop, func(tx *store.Tx) (_ *turnTx, err error) {
		if a, err = tx.Attempt(id); err != nil {
			return nil, err
		}
		return e.openAttempt(tx, id)
	}, func(w *turnTx) error { return fn(w, a) })
}

// onSeen is onAttempt for one that is still as it was seen.
func (e *Engine) onSeen(ctx context.Context, loop string, seen execution.Attempt, fn func(w *turnTx, a execution.Attempt) error) error {
	return e.onAttempt(ctx, loop, seen.ID, func(w *turnTx, a execution.Attempt) error {
		if a.State != seen.State || a.Fence != seen.Fence {
			return protocol.Errorf(protocol.CodeConflict, "attempt %s moved on", a.ID)
		}
		return fn(w, a)
	})
}

// change opens a turn, changes it and writes it, in one transaction. What waits
// for the commit happens after it, and else never.
func (e *Engine) change(ctx context.Context, loop string, open func(tx *store.Tx) (*turnTx, error), fn func(w *turnTx) error) error {
	var w *turnTx
	err := e.cfg.Store.Update(ctx, store.AsLoop(loop), func(tx *store.Tx) (err error) {
		if w, err = open(tx); err != nil {
			return err
		}
		if err := fn(w); err != nil {
			return err
		}
		return w.close()
	})
	if err != nil {
		return err
	}
	w.committed()
	return nil
}

// step makes one legal step. The step before it, if any, is written first:
// the store holds every single one against its table. INV-2.
func (w *turnTx) step(ev session.TurnEvent) error {
	if w.turn.State != w.prior {
		if err := w.flush(); err != nil {
			return err
		}
	}
	next, err := w.turn.Step(ev, w.tx.Now)
	if err != nil {
		return err
	}
	w.turn, w.dirty = next, true
	return nil
}

// touch marks a change that is no step.
func (w *turnTx) touch() { w.dirty = true }

func (w *turnTx) flush() error {
	if !w.dirty {
		return nil
	}
	switch {
	case w.turn.State.Terminal():
		// It holds the conversation so far, and nobody goes on from it: kept, a session
		// would have all of that once more with each of its turns.
		w.turn.Loop = nil
	case w.loop != nil:
		b, err := deterministic.Marshal(w.loop)
		if err != nil {
			return err
		}
		w.turn.Loop = b
	}
	if err := w.tx.SaveTurn(w.turn, w.prior, w.fence); err != nil {
		return err
	}
	w.prior, w.fence, w.dirty = w.turn.State, w.turn.OwnerFence, false
	return w.count()
}

// event notes what happened, in order.
func (w *turnTx) event(ev session.Event) {
	ev.Turn = w.turn.ID
	maps.DeleteFunc(ev.Data, func(_, v string) bool { return v == "" })
	w.events = append(w.events, ev)
}

// afterCommit runs f once the transaction is durable, and never otherwise.
func (w *turnTx) afterCommit(f func()) { w.after = append(w.after, f) }

// close writes the turn and its events; an ended turn becomes part of the
// conversation in the same transaction.
func (w *turnTx) close() error {
	if err := w.flush(); err != nil {
		return err
	}
	if len(w.events) == 0 {
		return nil
	}
	if _, err := w.tx.AppendEvents(w.turn.Session, w.events...); err != nil {
		return err
	}
	for _, ev := range w.events {
		if ev.Type == session.TurnEnded {
			if err := w.rests(); err != nil {
				return err
			}
			return w.project()
		}
	}
	return nil
}

func (w *turnTx) committed() {
	for _, f := range w.after {
		f()
	}
}

// project stores what the ended turn adds to the conversation.
func (w *turnTx) project() error {
	var all []session.Stored
	for after := int64(0); ; {
		page, err := w.tx.EventsOfTurn(w.turn.ID, after, 0)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		all, after = append(all, page...), page[len(page)-1].Seq
	}
	messages, err := session.Project(all)
	if err != nil {
		return err
	}
	b, err := session.EncodeMessages(messages)
	if err != nil {
		return err
	}
	return w.tx.SaveProjection(w.turn.Session, w.turn.ID, w.turn.N, b)
}

// snapshot is what activation froze.
func (w *turnTx) snapshot() (*policy.Snapshot, error) {
	if w.snap == nil {
		s, err := policy.DecodeSnapshot(w.turn.Snapshot, w.turn.SnapshotDigest)
		if err != nil {
			return nil, err
		}
		w.snap = &s
	}
	return w.snap, nil
}

// state is the loop's state.
func (w *turnTx) state() (*runtimev1.LoopState, error) {
	if w.loop == nil {
		s, err := readLoop(w.turn)
		if err != nil {
			return nil, err
		}
		w.loop = s
	}
	return w.loop, nil
}

func readLoop(t session.Turn) (*runtimev1.LoopState, error) {
	s := &runtimev1.LoopState{}
	if err := proto.Unmarshal(t.Loop, s); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "loop state of turn %s cannot be read: %w", t.ID, err)
	}
	return s, nil
}

// tool of the accepted set with an alias.
func (w *turnTx) tool(alias string) (*runtimev1.Tool, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	t, ok := snap.Accepted(alias)
	if !ok {
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "%q is not a tool of turn %s", alias, w.turn.ID)
	}
	return t, nil
}

package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// NewSession asks for a conversation with an agent.
type NewSession struct {
	Agent string
	// IdempotencyKey: the same key returns the same session.
	IdempotencyKey string
}

// CreateSession opens a conversation with the agent's current version.
func (e *Engine) CreateSession(ctx context.Context, c store.Caller, p NewSession) (session.Session, error) {
	var s session.Session
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		if p.IdempotencyKey != "" {
			if s, err = tx.SessionByKey(c.Principal(), p.IdempotencyKey); !notFound(err) {
				return sameAgent(s, p.Agent, err)
			}
		}
		def, agent, err := e.definition(tx, c.Tenant(), p.Agent, "")
		if err != nil {
			return err
		}
		if _, err := grantsFor(tx, c.Principal(), p.Agent); err != nil {
			return err
		}
		inst, err := tx.EnsureInstance(c.Tenant(), c.Principal(), p.Agent)
		if err != nil {
			return err
		}
		s = session.Session{
			ID: newID[protocol.SessionKind](e, tx.Now), Tenant: c.Tenant(), Principal: c.Principal(),
			Instance: inst.ID, Generation: inst.Generation, Agent: def.Name, AgentDigest: def.Digest, State: session.Open,
			DataBoundary: agent.DataBoundary, CreatedAt: tx.Now, LastActiveAt: tx.Now,
			ExpiresAt:      tx.Now.Add(narrowed(agent.Limits.SessionMax, e.cfg.Limits.MaxSessionLifetime)),
			IdleTTL:        narrowed(agent.Limits.SessionIdle, e.cfg.Limits.MaxSessionIdle),
			IdempotencyKey: p.IdempotencyKey,
		}
		if err := tx.InsertSession(s); err != nil {
			return err
		}
		_, err = tx.AppendEvents(s.ID, session.Event{Type: session.SessionCreated, Data: map[string]string{
			"agent": s.Agent, "agent_digest": s.AgentDigest, "data_boundary": s.DataBoundary}})
		return err
	})
	return s, err
}

func sameAgent(s session.Session, agent string, err error) error {
	if err == nil && s.Agent != agent {
		return protocol.Errorf(protocol.CodeConflict, "the idempotency key was used for a session with agent %q: use another key", s.Agent)
	}
	return err
}

// CloseSession takes no more turns, cancels queued ones and lets the active one
// end. It is idempotent.
func (e *Engine) CloseSession(ctx context.Context, c store.Caller, id protocol.SessionID) (session.Session, error) {
	if err := e.mySession(ctx, c, id); err != nil {
		return session.Session{}, err
	}
	var s session.Session
	var ended []*turnTx
	err := e.cfg.Store.Update(ctx, store.AsLoop("close"), func(tx *store.Tx) (err error) {
		ended = nil
		if s, err = tx.Session(id); err != nil || s.State != session.Open {
			return err
		}
		if err := stepSession(tx, &s, session.SessionClose); err != nil {
			return err
		}
		if ended, err = e.cancelQueued(tx, id, reasonSessionClosed, "The session was closed."); err != nil {
			return err
		}
		if _, err := tx.ActiveTurn(id); !notFound(err) {
			return err // it ends first
		}
		return closeDrained(tx, &s)
	})
	if err != nil {
		return s, err
	}
	for _, w := range ended {
		w.committed()
	}
	return s, nil
}

// mySession asks the store, as the caller, whether the session exists for it. INV-9.
func (e *Engine) mySession(ctx context.Context, c store.Caller, id protocol.SessionID) error {
	return e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		_, err := tx.Session(id)
		return err
	})
}

func stepSession(tx *store.Tx, s *session.Session, ev session.SessionEvent) error {
	next, err := s.Step(ev, tx.Now)
	if err != nil {
		return err
	}
	if err := tx.SaveSession(next, s.State); err != nil {
		return err
	}
	s.State, s.LastActiveAt = next.State, next.LastActiveAt
	return nil
}

func closeDrained(tx *store.Tx, s *session.Session) error {
	if err := stepSession(tx, s, session.SessionDrained); err != nil {
		return err
	}
	_, err := tx.AppendEvents(s.ID, session.Event{Type: session.SessionClosed})
	return err
}

// cancelQueued cancels every turn that still waits in a session.
func (e *Engine) cancelQueued(tx *store.Tx, id protocol.SessionID, reason, message string) ([]*turnTx, error) {
	var ended []*turnTx
	for cursor := ""; ; {
		page, next, err := tx.Turns(id, 0, cursor)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			if t.State != session.Queued {
				continue
			}
			w := e.holdTurn(tx, t)
			if err := w.endCancelled(reason, message); err != nil {
				return nil, err
			}
			if err := w.close(); err != nil {
				return nil, err
			}
			ended = append(ended, w)
		}
		if cursor = next; cursor == "" {
			return ended, nil
		}
	}
}

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
	err := e.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		if p.IdempotencyKey != "" {
			if s, err = tx.SessionByKey(c.Principal(), p.IdempotencyKey); !absent(err) {
				return sameAgent(s, p.Agent, err)
			}
		}
		def, agent, err := e.definition(tx, c.Tenant(), p.Agent, "")
		if err != nil {
			return err
		}
		if _, err := grantFor(tx, c.Principal(), p.Agent); err != nil {
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
			ExpiresAt: tx.Now.Add(agent.Limits.SessionMax), IdleTTL: agent.Limits.SessionIdle, IdempotencyKey: p.IdempotencyKey,
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
	err := e.Store.Update(ctx, store.AsLoop("close"), func(tx *store.Tx) (err error) {
		ended = nil
		if s, err = tx.Session(id); err != nil || s.State != session.Open {
			return err
		}
		if err := move(tx, &s, session.SessionClose); err != nil {
			return err
		}
		if ended, err = e.cancelQueued(tx, id, reasonSessionClosed, "The session was closed."); err != nil {
			return err
		}
		if _, err := tx.ActiveTurn(id); !absent(err) {
			return err // it ends first
		}
		return drained(tx, &s)
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
	return e.Store.View(ctx, c, func(tx *store.Tx) error {
		_, err := tx.Session(id)
		return err
	})
}

func move(tx *store.Tx, s *session.Session, ev session.SessionEvent) error {
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

func drained(tx *store.Tx, s *session.Session) error {
	if err := move(tx, s, session.SessionDrained); err != nil {
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
			if err := w.cancelled(reason, message); err != nil {
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

// tickSessions expires sessions that are idle or old, and closes closing ones
// whose last turn has ended.
func (e *Engine) tickSessions(ctx context.Context) (bool, error) {
	var over, empty []session.Session
	err := e.Store.View(ctx, store.AsLoop("sessions"), func(tx *store.Tx) (err error) {
		if over, err = tx.SessionsPastExpiry(100); err != nil {
			return err
		}
		empty, err = tx.SessionsDrained(100)
		return err
	})
	if err != nil {
		return false, err
	}
	expired, err := each(over, func(s session.Session) (bool, error) { return e.expireSession(ctx, s.ID) })
	if err != nil {
		return expired, err
	}
	closed, err := each(empty, func(s session.Session) (bool, error) {
		return true, e.Store.Update(ctx, store.AsLoop("sessions"), func(tx *store.Tx) error {
			s, err := tx.Session(s.ID)
			if err != nil || s.State != session.Closing {
				return err
			}
			return drained(tx, &s)
		})
	})
	return expired || closed, err
}

// expireSession ends a session that nothing works in; turns that wait or run
// keep it alive until they end.
func (e *Engine) expireSession(ctx context.Context, id protocol.SessionID) (worked bool, err error) {
	err = e.Store.Update(ctx, store.AsLoop("sessions"), func(tx *store.Tx) error {
		worked = false
		s, err := tx.Session(id)
		if err != nil || !s.Due(tx.Now) {
			return err
		}
		waiting, err := tx.QueueDepth(s.Tenant, s.Principal, id)
		if err != nil || waiting > 0 {
			return err
		}
		if _, err := tx.ActiveTurn(id); !absent(err) {
			return err
		}
		worked = true
		return expire(tx, &s)
	})
	return worked, err
}

func expire(tx *store.Tx, s *session.Session) error {
	if err := move(tx, s, session.SessionExpire); err != nil {
		return err
	}
	_, err := tx.AppendEvents(s.ID, session.Event{Type: session.SessionClosed, Data: map[string]string{"state": string(s.State)}})
	return err
}

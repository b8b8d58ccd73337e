package engine

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// tickSessions expires sessions that are idle or old, and closes closing ones
// whose last turn has ended.
func (e *Engine) tickSessions(ctx context.Context) (bool, error) {
	var over, empty []session.Session
	err := e.cfg.Store.View(ctx, store.AsLoop("sessions"), func(tx *store.Tx) (err error) {
		if over, err = tx.SessionsPastExpiry(tickBatch); err != nil {
			return err
		}
		empty, err = tx.SessionsDrained(tickBatch)
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
		return true, e.cfg.Store.Update(ctx, store.AsLoop("sessions"), func(tx *store.Tx) error {
			s, err := tx.Session(s.ID)
			if err != nil || s.State != session.Closing {
				return err
			}
			return closeDrained(tx, &s)
		})
	})
	return expired || closed, err
}

// expireSession ends a session whose time is over. What waits or works keeps an
// idle one, which counts anew from then; nothing keeps one that has reached its
// maximum lifetime. INV-13, INV-18.
func (e *Engine) expireSession(ctx context.Context, id protocol.SessionID) (worked bool, err error) {
	var ended []*turnTx
	err = e.cfg.Store.Update(ctx, store.AsLoop("sessions"), func(tx *store.Tx) error {
		worked, ended = false, nil
		s, err := tx.Session(id)
		if err != nil || !s.Due(tx.Now) {
			return err
		}
		worked = true
		if s.Outlived(tx.Now) {
			if ended, err = e.endTurns(tx, id, sessionExpired); err != nil {
				return err
			}
			return expire(tx, id)
		}
		if busy, err := occupied(tx, s); err != nil {
			return err
		} else if busy {
			s.LastActiveAt = tx.Now
			return tx.SaveSession(s, s.State)
		}
		return expire(tx, id)
	})
	if err != nil {
		return false, err
	}
	for _, w := range ended {
		w.committed()
	}
	return worked, nil
}

// occupied reports that a turn waits or works in the session.
func occupied(tx *store.Tx, s session.Session) (bool, error) {
	waiting, err := tx.QueueDepth(s.Tenant, s.Principal, s.ID)
	if err != nil || waiting > 0 {
		return waiting > 0, err
	}
	_, err = tx.ActiveTurn(s.ID)
	if notFound(err) {
		return false, nil
	}
	return err == nil, err
}

// endTurns ends every turn of a session, with all that works for it.
func (e *Engine) endTurns(tx *store.Tx, id protocol.SessionID, why *taken) ([]*turnTx, error) {
	ended, err := e.cancelQueued(tx, id, why.reason, why.message)
	if err != nil {
		return nil, err
	}
	t, err := tx.ActiveTurn(id)
	if notFound(err) {
		return ended, nil
	} else if err != nil {
		return nil, err
	}
	w := e.holdTurn(tx, t)
	if err := w.endFailed(why.reason, why.message); err != nil {
		return nil, err
	}
	return append(ended, w), w.close()
}

func expire(tx *store.Tx, id protocol.SessionID) error {
	s, err := tx.Session(id)
	if err != nil {
		return err
	}
	why := "lifetime"
	if _, idle := s.Ends(); idle && !s.Outlived(tx.Now) {
		why = "idle"
	}
	if err := stepSession(tx, &s, session.SessionExpire); err != nil {
		return err
	}
	_, err = tx.AppendEvents(s.ID, session.Event{Type: session.SessionClosed, Data: map[string]string{"state": string(s.State), "reason": why}})
	return err
}

// rests begins the idle time of the session anew: it counts from the end of its
// last turn, not from the prompt of it.
func (w *turnTx) rests() error {
	s, err := w.tx.Session(w.turn.Session)
	if err != nil || s.State != session.Open || s.IdleTTL == 0 {
		return err
	}
	s.LastActiveAt = w.tx.Now
	return w.tx.SaveSession(s, s.State)
}

// overFor says in words why a session takes no prompt; empty when it does.
func overFor(s session.Session, now time.Time) string {
	at, idle := s.Ends()
	switch {
	case s.State == session.Closing, s.State == session.Closed:
		return "was closed"
	case s.State == session.Revoked:
		return "was revoked"
	case s.State == session.Open && !s.Due(now):
		return ""
	case idle:
		return fmt.Sprintf("was idle for %s and ended at %s", s.IdleTTL, at.UTC().Format(time.RFC3339))
	}
	return "reached its maximum lifetime at " + at.UTC().Format(time.RFC3339)
}

// EndSession takes a session back at once: its turns end, whatever they are at,
// and no capability of it is admitted any more. It is idempotent. INV-13.
func (e *Engine) EndSession(ctx context.Context, c store.Caller, id protocol.SessionID) (session.Session, error) {
	if err := e.mySession(ctx, c, id); err != nil {
		return session.Session{}, err
	}
	err := e.revokeSession(ctx, id, foundation{why: &taken{reasonEnded, "The session was ended by its person."}})
	var s session.Session
	if err == nil {
		err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
			s, err = tx.Session(id)
			return err
		})
	}
	return s, err
}

// cleanSessions revokes the sessions that stood on a principal or a grant that was
// taken back: the request was made with the revocation, so that no crash between
// the two leaves a session open. INV-13, INV-18.
func (e *Engine) cleanSessions(ctx context.Context, c policy.Cleanup) error {
	f, err := e.stoodOn(ctx, c)
	if err == nil {
		err = e.revokeSessions(ctx, f)
	}
	return e.cleaned(ctx, c, "its sessions are revoked", err)
}

// stoodOn is what the subject of a cleanup was to the sessions that end with it.
func (e *Engine) stoodOn(ctx context.Context, c policy.Cleanup) (foundation, error) {
	if id, wrong := protocol.ParseID[protocol.PrincipalKind](c.Subject); wrong == nil {
		return foundation{owner: store.AsPrincipal(c.Tenant, id, false), why: principalDisabled}, nil
	}
	id, err := protocol.ParseID[protocol.GrantKind](c.Subject)
	if err != nil {
		return foundation{}, err
	}
	var g policy.Grant
	err = e.cfg.Store.View(ctx, store.AsLoop("cleanup"), func(tx *store.Tx) (err error) {
		g, err = tx.Grant(id)
		return err
	})
	return onGrant(g), err
}

// asksSessions asks, in the transaction of a revocation, for the end of the
// sessions that stood on it, in case nobody has done it by then.
func (e *Engine) asksSessions(tx *store.Tx, tenant protocol.TenantID, subject string, by time.Time) error {
	if planted.Chosen == planted.Mint {
		by = by.Add(time.Minute) // what ends the work at once would hide that nothing else does
	}
	return tx.InsertCleanup(policy.Cleanup{ID: newID[protocol.CleanupKind](e, tx.Now), Tenant: tenant, Kind: policy.CleanupSessions,
		Subject: subject, CreatedAt: tx.Now, NextAt: by})
}

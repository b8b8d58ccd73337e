package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/planted"
	"bivouac/server/session"
)

// Standing is what a prompt meets in its session. Every admission reads it, so it
// takes one statement however much it says, and looks at no turn that waits.
type Standing struct {
	Session session.Session // its row is held until the commit
	// Same is the turn that the message made before; zero for a new message.
	Same protocol.TurnID
	// Turns that wait: of the session's principal, and of its tenant.
	QueuedOfPrincipal, QueuedOfTenant int
	Active                            bool // a turn occupies the session
	Last                              int64
}

// Begun is the number of the last turn that came before those that wait.
func (s Standing) Begun() int64 { return s.Last - int64(s.Session.Queued) }

var standing = define(`SELECT ` + sessionColumns + `,
	(SELECT COALESCE(MIN(m.id), '') FROM turns m WHERE m.session = $3 AND m.message_id = $4),
	(SELECT COALESCE(MAX(l.n), 0) FROM turns l WHERE l.session = $3),
	(SELECT CAST(COALESCE(SUM(p.queued), 0) AS BIGINT) FROM sessions p WHERE p.tenant = s.tenant AND p.principal = s.principal AND p.queued > 0),
	(SELECT CAST(COALESCE(SUM(t.queued), 0) AS BIGINT) FROM sessions t WHERE t.tenant = s.tenant AND t.queued > 0),
	(SELECT COUNT(*) FROM turns x WHERE x.session = $3 AND x.state IN ` + activeStates + `)
	FROM sessions s WHERE ` + own("s") + ` AND s.id = $3{lock}`)

// Standing holds the session's row and reads what a message meets there. On
// PostgreSQL its transaction sees a snapshot: a row that somebody changed since is
// not held, but the transaction runs again.
func (tx *Tx) Standing(id protocol.SessionID, messageID string) (Standing, error) {
	return one(tx, "session", id, func(r scanner) (s Standing, err error) {
		active := 0
		err = r.Scan(append(sessionFields(&s.Session), &s.Same, &s.Last, &s.QueuedOfPrincipal, &s.QueuedOfTenant, &active)...)
		s.Active = active > 0
		return s, err
	}, standing, tx.mine(id, messageID))
}

var (
	// A turn that waits has no more columns than these.
	queueTurn = define(`INSERT INTO turns
		(id, session, tenant, principal, n, message_id, message_digest, prompt, workspace_digest, state, placement, queued_at,
		 queue_deadline, trace_parent, loop,
		 prior_state, reason, message, answer, activated_at, deadline, ended_at, cancel_requested_at, reconcile_deadline,
		 snapshot, snapshot_digest, owner, owner_fence, patch_digest, model_call, attempt, attempts,
		 input_tokens, output_tokens, cost_micro_usd, slice, model_calls, usage_settled_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
		 '', '', '', '', 0, 0, 0, 0, 0, '', '', '', 0, '', '', '', 0, 0, 0, 0, '', 0, 0) ON CONFLICT DO NOTHING`)
	admitted = define(`UPDATE sessions SET last_seq = $2, last_hash = $3, last_active_at = $5, due_at = $6, queued = queued + 1
		WHERE id = $1 AND last_seq = $4`)
)

// Admit queues a turn at the end of its session's order, with the first event of
// its life, and notes that the session was used: what InsertTurn, AppendEvents and
// SaveSession do, with one write a row. INV-8, INV-15.
func (tx *Tx) Admit(s Standing, t session.Turn, said session.Event) (session.Turn, error) {
	if err := tx.concerns("a turn", s.Session.Tenant, s.Session.Principal); err != nil {
		return t, err
	}
	t, err := numbered(s.Session, s.Last, t)
	if err != nil {
		return t, err
	}
	n, err := tx.exec(queueTurn, t.ID, t.Session, t.Tenant, t.Principal, t.N, t.MessageID, t.MessageDigest, t.Prompt, t.WorkspaceDigest,
		t.State, t.Placement, t.QueuedAt, t.QueueDeadline, t.TraceParent, t.Loop)
	if err != nil {
		return t, err
	}
	if n == 0 {
		return t, sentAlready(t)
	}
	said.Turn = t.ID
	_, seq, hash, err := tx.chain(s.Session, said)
	if err != nil {
		return t, err
	}
	s.Session.LastActiveAt = tx.Now
	n, err = tx.exec(admitted, t.Session, seq, hash, s.Session.LastSeq, s.Session.LastActiveAt, dueAt(s.Session))
	if err != nil {
		return t, err
	}
	if n == 0 {
		return t, protocol.Errorf(protocol.CodeConflict, "the events of session %s moved on", t.Session)
	}
	tx.touch(TopicTurns)
	tx.touch(TopicEvents)
	tx.touch(EventsOf(t.Session))
	return t, nil
}

// chain stores events after the last one of a held session row and returns the
// chain's new end, which the caller writes to the row. INV-8.
func (tx *Tx) chain(row session.Session, events ...session.Event) (out []session.Stored, seq int64, hash []byte, err error) {
	out = make([]session.Stored, 0, len(events))
	seq, hash = row.LastSeq, row.LastHash
	for _, e := range events {
		seq++
		stored, err := tx.appendEvent(session.Stored{Event: e, Session: row.ID, Seq: seq, At: tx.Now, PrevHash: hash})
		if err != nil {
			return nil, 0, nil, err
		}
		if hash = stored.Hash; planted.Chosen == planted.Chain {
			hash = row.LastHash
		}
		out = append(out, stored)
	}
	return out, seq, hash, nil
}

var paceOf = define(`SELECT COUNT(*), CAST(COALESCE(SUM(head.took), 0) AS BIGINT) FROM (
		SELECT t.ended_at - t.activated_at AS took, t.activated_at, t.ended_at FROM turns t
		WHERE ` + own("t") + ` AND t.session = $3 AND t.n <= $4 ORDER BY t.n DESC LIMIT $5
	) head WHERE head.activated_at > 0 AND head.ended_at > 0`)

// Pace is how many of the session's few turns up to a number have ended after they
// began, and how long that took on the average.
func (tx *Tx) Pace(s protocol.SessionID, upTo int64, few int) (n int, took time.Duration, err error) {
	type pace struct{ n, took int64 }
	p, err := first(tx, func(r scanner) (p pace, err error) {
		err = r.Scan(&p.n, &p.took)
		return p, err
	}, paceOf, tx.mine(s, upTo, few))
	if err != nil || p.n == 0 {
		return 0, 0, err
	}
	return int(p.n), time.Duration(p.took/p.n) * time.Microsecond, nil
}

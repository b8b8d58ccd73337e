package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

const sessionColumns = `s.id, s.tenant, s.principal, s.instance, s.generation, s.agent, s.agent_digest, s.state,
	s.data_boundary, s.created_at, s.last_active_at, s.expires_at, s.idle_ttl, s.idempotency_key, s.last_seq, s.last_hash, s.queued`

func sessionFields(s *session.Session) []any {
	return []any{&s.ID, &s.Tenant, &s.Principal, &s.Instance, &s.Generation, &s.Agent, &s.AgentDigest, &s.State,
		&s.DataBoundary, at(&s.CreatedAt), at(&s.LastActiveAt), at(&s.ExpiresAt), span(&s.IdleTTL), &s.IdempotencyKey,
		&s.LastSeq, blob(&s.LastHash), &s.Queued}
}

func scanSession(r scanner) (s session.Session, err error) {
	err = r.Scan(sessionFields(&s)...)
	return s, err
}

var insertSession = define(`INSERT INTO sessions
	(id, tenant, principal, instance, generation, agent, agent_digest, prior_state, state,
	 data_boundary, created_at, last_active_at, expires_at, idle_ttl, due_at, idempotency_key, last_seq, last_hash)
	VALUES ($1, $2, $3, $4, $5, $6, $7, '', $8, $9, $10, $11, $12, $13, $14, $15, 0, $16) ON CONFLICT DO NOTHING`)

// InsertSession stores a new session; its idempotency key is unique per principal.
// The end of its event chain and its queue are the store's and begin empty.
func (tx *Tx) InsertSession(s session.Session) error {
	if err := tx.concerns("a session", s.Tenant, s.Principal); err != nil {
		return err
	}
	n, err := tx.exec(insertSession, s.ID, s.Tenant, s.Principal, s.Instance, s.Generation, s.Agent, s.AgentDigest,
		s.State, s.DataBoundary, s.CreatedAt, s.LastActiveAt, s.ExpiresAt, s.IdleTTL, dueAt(s), s.IdempotencyKey, []byte(nil))
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "a session with this id or idempotency key exists already")
	}
	tx.touch(TopicTurns)
	return err
}

// dueAt is when the session ends by time alone; zero for never.
func dueAt(s session.Session) time.Time {
	at, _ := s.Ends()
	return at
}

var (
	sessionByID = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE ` + own("s") + ` AND s.id = $3`)
	sessionLocked = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE ` + own("s") + ` AND s.id = $3{lock}`)
	sessionByKey = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE ` + own("s") + ` AND s.principal = $3 AND s.idempotency_key = $4 AND s.idempotency_key <> ''`)
)

func (tx *Tx) Session(id protocol.SessionID) (session.Session, error) {
	return one(tx, "session", id, scanSession, sessionByID, tx.mine(id))
}

// locked is the session with its row held until the commit: what is numbered
// within a session is numbered under it.
func (tx *Tx) locked(id protocol.SessionID) (session.Session, error) {
	return one(tx, "session", id, scanSession, sessionLocked, tx.mine(id))
}

// SessionByKey finds a session by the client's idempotency key.
func (tx *Tx) SessionByKey(principal protocol.PrincipalID, key string) (session.Session, error) {
	return one(tx, "session with idempotency key", key, scanSession, sessionByKey, tx.mine(principal, key))
}

var (
	sessionsPage = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE s.tenant = $1 AND s.principal = $2 AND (s.created_at, s.id) < ($3, $4)
		ORDER BY s.created_at DESC, s.id DESC LIMIT $5`)
	allSessionsPage = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE (s.created_at, s.id) < ($1, $2) ORDER BY s.created_at DESC, s.id DESC LIMIT $3`)
)

// Sessions pages the caller's sessions, newest first; cursor is opaque.
func (tx *Tx) Sessions(limit int, cursor string) ([]session.Session, string, error) {
	from, err := readCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	limit = limited(limit)
	st, args := allSessionsPage, []any{from.at, from.id, limit}
	if !tx.caller.Internal() {
		st, args = sessionsPage, tx.mine(args...)
	}
	page, err := list(tx, scanSession, st, args)
	if err != nil || len(page) < limit {
		return page, "", err
	}
	last := page[len(page)-1]
	return page, position{at: micros(last.CreatedAt), id: last.ID.String()}.String(), nil
}

var (
	saveSession = define(`UPDATE sessions SET prior_state = CASE WHEN state = $5 THEN prior_state ELSE state END, state = $5,
		last_active_at = $6, expires_at = $7, generation = $8, due_at = $9
		WHERE ($1 = '' OR (tenant = $1 AND principal = $2)) AND id = $3 AND ` + stateIs("state", "$4"))
	sessionsPastExpiry = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE ` + own("s") + ` AND s.state = 'OPEN' AND s.due_at > 0 AND s.due_at <= $3
		ORDER BY s.due_at, s.id LIMIT $4`)
	sessionsDrained = define(`SELECT ` + sessionColumns + ` FROM sessions s
		WHERE ` + own("s") + ` AND s.state = 'CLOSING'
			AND s.queued = 0
			AND NOT EXISTS (SELECT 1 FROM turns a WHERE a.session = s.id AND a.state IN ` + activeStates + `)
		ORDER BY s.last_active_at, s.id LIMIT $3`)
)

// SaveSession writes state, expiry, last activity and generation, guarded by the prior state.
func (tx *Tx) SaveSession(s session.Session, prior session.State) error {
	n, err := tx.exec(saveSession, tx.mine(s.ID, prior, s.State, s.LastActiveAt, s.ExpiresAt, s.Generation, dueAt(s))...)
	if err != nil {
		return err
	}
	if n == 0 {
		now, err := tx.Session(s.ID)
		if err != nil {
			return err
		}
		return protocol.Errorf(protocol.CodeConflict, "session %s is %s, not %s", s.ID, now.State, prior)
	}
	tx.touch(TopicTurns)
	return nil
}

// SessionsPastExpiry are open sessions past their idle or maximum lifetime.
func (tx *Tx) SessionsPastExpiry(limit int) ([]session.Session, error) {
	return list(tx, scanSession, sessionsPastExpiry, tx.mine(tx.Now, limited(limit)))
}

// SessionsDrained are closing sessions whose last turn has ended.
func (tx *Tx) SessionsDrained(limit int) ([]session.Session, error) {
	return list(tx, scanSession, sessionsDrained, tx.mine(limited(limit)))
}

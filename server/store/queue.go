package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/planted"
	"bivouac/server/session"
)

var firstQueued = define(`SELECT ` + turnColumns + fromTurns + `
	WHERE ` + own("t") + ` AND t.session = $3 AND t.state = 'QUEUED' ORDER BY t.n LIMIT 1`)

// mayActivate holds the order of the queue and the one active turn. INV-1.
func (tx *Tx) mayActivate(id protocol.TurnID) error {
	t, err := tx.Turn(id)
	if err != nil {
		return err
	}
	if _, err := tx.locked(t.Session); err != nil {
		return err
	}
	active, err := first(tx, scanTurn, activeTurn, tx.mine(t.Session))
	if err == nil {
		return protocol.Errorf(protocol.CodeConflict, "session %s is occupied by turn %s", t.Session, active.ID)
	} else if err != errNoRow {
		return err
	}
	head, err := first(tx, scanTurn, firstQueued, tx.mine(t.Session))
	if err == nil && head.ID != id && planted.Chosen != planted.Order {
		return protocol.Errorf(protocol.CodeConflict, "turn %s waits behind turn %s", id, head.ID)
	} else if err != nil && err != errNoRow {
		return err
	}
	return nil
}

var (
	queueOfSession = define(`SELECT ` + waiting + ` FROM sessions s WHERE ` + own("s") + ` AND s.id = $3`)
	queueOfAll     = define(`SELECT ` + waiting + ` FROM sessions s WHERE s.queued > 0`)
	queueOfTenant  = define(`SELECT ` + waiting + ` FROM sessions s WHERE s.tenant = $1 AND s.queued > 0`)
	queueOfOne     = define(`SELECT ` + waiting + ` FROM sessions s WHERE s.tenant = $1 AND s.principal = $2 AND s.queued > 0`)
	queuePosition  = define(`SELECT COUNT(*) FROM turns q WHERE q.session = $1 AND q.state = 'QUEUED' AND q.n <= $2`)
)

// waiting are the turns that wait in sessions. Each session's row counts its own:
// what queues a turn adds one, and the turn's first step takes it away.
const waiting = `CAST(COALESCE(SUM(s.queued), 0) AS BIGINT)`

var (
	joinQueue  = define(`UPDATE sessions SET queued = queued + 1 WHERE id = $1`)
	leaveQueue = define(`UPDATE sessions SET queued = queued - 1 WHERE id = (SELECT t.session FROM turns t WHERE t.id = $1)`)
)

// QueueDepth counts QUEUED turns; zero ids do not narrow. A principal may count
// its own and, as one number, its tenant's: that is the bound it runs into.
func (tx *Tx) QueueDepth(tenant protocol.TenantID, principal protocol.PrincipalID, s protocol.SessionID) (int, error) {
	if !s.IsZero() {
		n, err := first(tx, number, queueOfSession, tx.mine(s))
		return int(n), err
	}
	if c := tx.caller; !c.Internal() {
		if !tenant.IsZero() && tenant != c.tenant || !principal.IsZero() && principal != c.principal || c.kind == callerRunner {
			return 0, nil
		}
		tenant = c.tenant
	}
	st, args := queueOfAll, []any{}
	switch {
	case !principal.IsZero() && !tenant.IsZero():
		st, args = queueOfOne, []any{tenant, principal}
	case !principal.IsZero():
		return 0, protocol.Errorf(protocol.CodeInvalidArgument, "the queue of a principal is counted within its tenant")
	case !tenant.IsZero():
		st, args = queueOfTenant, []any{tenant}
	}
	n, err := first(tx, number, st, args)
	return int(n), err
}

// QueuePosition is 1 for the turn that is activated next in its session, and 0
// for one that no longer waits.
func (tx *Tx) QueuePosition(id protocol.TurnID) (int, error) {
	t, err := tx.Turn(id)
	if err != nil || t.State != session.Queued {
		return 0, err
	}
	n, err := first(tx, number, queuePosition, []any{t.Session, t.N})
	return int(n), err
}

var (
	activatable = define(`SELECT ` + turnColumns + ` FROM (
			SELECT q.id, q.queued_at, ROW_NUMBER() OVER (PARTITION BY q.tenant ORDER BY q.queued_at, q.id) AS place
			FROM turns q
			WHERE q.state = 'QUEUED'
				AND NOT EXISTS (SELECT 1 FROM turns e WHERE e.session = q.session AND e.state = 'QUEUED' AND e.n < q.n)
				AND NOT EXISTS (SELECT 1 FROM turns x WHERE x.session = q.session AND x.state IN ` + activeStates + `)
		) head JOIN turns t ON t.id = head.id LEFT JOIN snapshots sn ON sn.digest = t.snapshot
		WHERE ` + own("t") + ` ORDER BY head.place, head.queued_at, t.id LIMIT $3`)
	ownedTurns = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE ` + own("t") + ` AND t.owner = $3 AND t.state IN ` + activeStates + ` ORDER BY t.activated_at, t.id`)
	orphanedTurns = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE ` + own("t") + ` AND t.state IN ` + activeStates + ` AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.id = t.owner)
		ORDER BY t.activated_at, t.id LIMIT $3`)
	queuedPastDeadline = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE ` + own("t") + ` AND t.state = 'QUEUED' AND t.queue_deadline > 0 AND t.queue_deadline <= $3
		ORDER BY t.queue_deadline, t.id LIMIT $4`)
	activePastDeadline = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE ` + own("t") + ` AND t.state IN ` + activeStates + ` AND ((t.deadline > 0 AND t.deadline <= $3)
			OR (t.reconcile_deadline > 0 AND t.reconcile_deadline <= $3))
		ORDER BY t.queued_at, t.id LIMIT $4`)
)

// Activatable returns, for sessions without an active turn, the first queued turn, fair across tenants.
func (tx *Tx) Activatable(limit int) ([]session.Turn, error) {
	return list(tx, scanTurn, activatable, tx.mine(limited(limit)))
}

// OwnedTurns are the active turns whose owner row is the replica's.
func (tx *Tx) OwnedTurns(r protocol.ReplicaID) ([]session.Turn, error) {
	return list(tx, scanTurn, ownedTurns, tx.mine(r))
}

// OrphanedTurns are active turns whose owner is no replica any more.
func (tx *Tx) OrphanedTurns(limit int) ([]session.Turn, error) {
	return list(tx, scanTurn, orphanedTurns, tx.mine(limited(limit)))
}

// TurnsPastDeadline are queued turns past QueueDeadline and active ones past Deadline or ReconcileDeadline.
func (tx *Tx) TurnsPastDeadline(limit int) ([]session.Turn, error) {
	limit = limited(limit)
	active, err := list(tx, scanTurn, activePastDeadline, tx.mine(tx.Now, limit))
	if err != nil || len(active) == limit {
		return active, err
	}
	queued, err := list(tx, scanTurn, queuedPastDeadline, tx.mine(tx.Now, limit-len(active)))
	return append(active, queued...), err
}

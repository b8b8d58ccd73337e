package store

import (
	"crypto/sha256"
	"encoding/hex"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

const turnColumns = `t.id, t.session, t.tenant, t.principal, t.n, t.message_id, t.message_digest, t.prompt, t.workspace_digest,
	t.state, t.reason, t.message, t.answer, t.placement, t.queued_at, t.queue_deadline, t.activated_at, t.deadline, t.ended_at,
	t.cancel_requested_at, t.reconcile_deadline, sn.body, t.snapshot_digest,
	t.owner, t.owner_fence, t.loop, t.patch_digest, t.model_call, t.attempt, t.attempts,
	t.input_tokens, t.output_tokens, t.cost_micro_usd, t.slice, t.trace_parent, t.model_calls, t.usage_settled_at`

const fromTurns = ` FROM turns t LEFT JOIN snapshots sn ON sn.digest = t.snapshot `

func scanTurn(r scanner) (t session.Turn, err error) {
	err = r.Scan(&t.ID, &t.Session, &t.Tenant, &t.Principal, &t.N, &t.MessageID, &t.MessageDigest, &t.Prompt, &t.WorkspaceDigest,
		&t.State, &t.Reason, &t.Message, &t.Answer, &t.Placement, at(&t.QueuedAt), at(&t.QueueDeadline), at(&t.ActivatedAt),
		at(&t.Deadline), at(&t.EndedAt), at(&t.CancelRequestedAt), at(&t.ReconcileDeadline), blob(&t.Snapshot), &t.SnapshotDigest,
		&t.Owner, &t.OwnerFence, blob(&t.Loop), &t.PatchDigest, &t.ModelCall, &t.Attempt, &t.Attempts,
		&t.InputTokens, &t.OutputTokens, &t.CostMicroUSD, &t.Slice, &t.TraceParent,
		&t.ModelCalls, at(&t.UsageSettledAt))
	return t, err
}

var (
	lastTurnN  = define(`SELECT COALESCE(MAX(n), 0) FROM turns WHERE session = $1`)
	insertTurn = define(`INSERT INTO turns
		(id, session, tenant, principal, n, message_id, message_digest, prompt, workspace_digest,
		 prior_state, state, reason, message, answer, placement, queued_at, queue_deadline, activated_at, deadline, ended_at,
		 cancel_requested_at, reconcile_deadline, snapshot, snapshot_digest, owner, owner_fence,
		 loop, patch_digest, model_call, attempt, attempts, input_tokens, output_tokens, cost_micro_usd, slice, trace_parent,
		 model_calls, usage_settled_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
		 $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37) ON CONFLICT DO NOTHING`)
	insertSnapshot = define(`INSERT INTO snapshots (digest, body) VALUES ($1, $2) ON CONFLICT DO NOTHING`)
)

// InsertTurn queues a turn at the end of its session's order and returns it with
// N set. A message id that the session has already is already_exists: TurnByMessage
// finds the turn. INV-15.
func (tx *Tx) InsertTurn(t session.Turn) (session.Turn, error) {
	s, err := tx.locked(t.Session)
	if err != nil {
		return t, err
	}
	last, err := first(tx, number, lastTurnN, []any{t.Session})
	if err != nil {
		return t, err
	}
	if t, err = numbered(s, last, t); err != nil {
		return t, err
	}
	snapshot, err := tx.keepSnapshot(t.Snapshot)
	if err != nil {
		return t, err
	}
	n, err := tx.exec(insertTurn, t.ID, t.Session, t.Tenant, t.Principal, t.N, t.MessageID, t.MessageDigest, t.Prompt, t.WorkspaceDigest,
		t.State, t.Reason, t.Message, t.Answer, t.Placement, t.QueuedAt, t.QueueDeadline, t.ActivatedAt, t.Deadline, t.EndedAt,
		t.CancelRequestedAt, t.ReconcileDeadline, snapshot, t.SnapshotDigest, t.Owner, t.OwnerFence,
		t.Loop, t.PatchDigest, t.ModelCall, t.Attempt, t.Attempts, t.InputTokens, t.OutputTokens, t.CostMicroUSD, t.Slice, t.TraceParent,
		t.ModelCalls, t.UsageSettledAt)
	if err != nil {
		return t, err
	}
	if n == 0 {
		return t, sentAlready(t)
	}
	_, err = tx.exec(joinQueue, t.Session)
	tx.touch(TopicTurns)
	return t, err
}

// numbered is a turn after the last one of a held session row.
func numbered(s session.Session, last int64, t session.Turn) (session.Turn, error) {
	if t.MessageID == "" {
		return t, protocol.Errorf(protocol.CodeInvalidArgument, "a turn needs a message id")
	}
	t.Session, t.Tenant, t.Principal, t.N = s.ID, s.Tenant, s.Principal, last+1
	return t, nil
}

func sentAlready(t session.Turn) error {
	return protocol.Errorf(protocol.CodeAlreadyExists, "message %q was sent already in session %s", t.MessageID, t.Session)
}

// keepSnapshot stores a snapshot under its digest and returns that.
func (tx *Tx) keepSnapshot(body []byte) (string, error) {
	if len(body) == 0 {
		return "", nil
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	_, err := tx.exec(insertSnapshot, digest, body)
	return digest, err
}

var (
	turnByID      = define(`SELECT ` + turnColumns + fromTurns + `WHERE ` + own("t") + ` AND t.id = $3`)
	turnByMessage = define(`SELECT ` + turnColumns + fromTurns + `WHERE ` + own("t") + ` AND t.session = $3 AND t.message_id = $4`)
	activeTurn    = define(`SELECT ` + turnColumns + fromTurns + `WHERE ` + own("t") + ` AND t.session = $3 AND t.state IN ` + activeStates)
	turnOfAttempt = define(`SELECT ` + turnColumns + fromTurns + `WHERE ` + own("t") + ` AND t.id = (
		SELECT COALESCE(a.turn, att.subject_id) FROM attempts att
		LEFT JOIN actions a ON att.subject_kind = 'agent-action' AND a.id = att.subject_id
		WHERE att.id = $3)`)
)

func (tx *Tx) Turn(id protocol.TurnID) (session.Turn, error) {
	return one(tx, "turn", id, scanTurn, turnByID, tx.mine(id))
}

func (tx *Tx) TurnByMessage(s protocol.SessionID, messageID string) (session.Turn, error) {
	return one(tx, "turn of message", messageID, scanTurn, turnByMessage, tx.mine(s, messageID))
}

// ActiveTurn is the turn that occupies the session; not_found when none does. INV-1.
func (tx *Tx) ActiveTurn(s protocol.SessionID) (session.Turn, error) {
	return one(tx, "active turn of session", s, scanTurn, activeTurn, tx.mine(s))
}

// TurnOfAttempt joins the two worlds for the engine alone.
func (tx *Tx) TurnOfAttempt(id protocol.AttemptID) (session.Turn, error) {
	return one(tx, "turn of attempt", id, scanTurn, turnOfAttempt, tx.mine(id))
}

var (
	turnsPage = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE t.tenant = $1 AND t.principal = $2 AND (t.queued_at, t.n, t.id) < ($3, $4, $5)
		ORDER BY t.queued_at DESC, t.n DESC, t.id DESC LIMIT $6`)
	allTurnsPage = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE (t.queued_at, t.n, t.id) < ($1, $2, $3)
		ORDER BY t.queued_at DESC, t.n DESC, t.id DESC LIMIT $4`)
	sessionTurnsPage = define(`SELECT ` + turnColumns + fromTurns + `
		WHERE ` + own("t") + ` AND t.session = $3 AND t.n < $4 ORDER BY t.n DESC LIMIT $5`)
)

// Turns pages the turns of a session, or of the caller when the session is zero, newest first.
func (tx *Tx) Turns(s protocol.SessionID, limit int, cursor string) ([]session.Turn, string, error) {
	from, err := readCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	limit = limited(limit)
	var st *statement
	var args []any
	switch {
	case !s.IsZero():
		st, args = sessionTurnsPage, tx.mine(s, from.n, limit)
	case tx.caller.Internal():
		st, args = allTurnsPage, []any{from.at, from.n, from.id, limit}
	default:
		st, args = turnsPage, tx.mine(from.at, from.n, from.id, limit)
	}
	page, err := list(tx, scanTurn, st, args)
	if err != nil || len(page) < limit {
		return page, "", err
	}
	last := page[len(page)-1]
	return page, position{micros(last.QueuedAt), last.N, last.ID.String()}.String(), nil
}

var saveTurn = define(`UPDATE turns SET
	prior_state = CASE WHEN state = $6 THEN prior_state ELSE state END, state = $6,
	reason = $7, message = $8, answer = $9, placement = $10, queue_deadline = $11, activated_at = $12, deadline = $13, ended_at = $14,
	cancel_requested_at = $15, reconcile_deadline = $16, snapshot = $17, snapshot_digest = $18,
	owner = $19, owner_fence = $20, loop = $21, patch_digest = $22, model_call = $23,
	attempt = $24, attempts = $25, input_tokens = $26, output_tokens = $27, cost_micro_usd = $28, slice = $29, trace_parent = $30,
	model_calls = $31, usage_settled_at = $32
	WHERE ($1 = '' OR (tenant = $1 AND principal = $2)) AND id = $3 AND ` + stateIs("state", "$4") + ` AND owner_fence = $5 AND owner_fence <= $20`)

// SaveTurn writes every mutable column, guarded by prior state and owner fence; a guard that
// fails is stale_fence or conflict. A second active turn of a session is refused. INV-1, INV-3.
func (tx *Tx) SaveTurn(t session.Turn, prior session.TurnState, fence protocol.Fence) error {
	if prior == session.Queued && t.State.Active() {
		if err := tx.mayActivate(t.ID); err != nil {
			return err
		}
	}
	snapshot, err := tx.keepSnapshot(t.Snapshot)
	if err != nil {
		return err
	}
	n, err := tx.exec(saveTurn, tx.mine(t.ID, prior, fence, t.State,
		t.Reason, t.Message, t.Answer, t.Placement, t.QueueDeadline, t.ActivatedAt, t.Deadline, t.EndedAt,
		t.CancelRequestedAt, t.ReconcileDeadline, snapshot, t.SnapshotDigest,
		t.Owner, t.OwnerFence, t.Loop, t.PatchDigest, t.ModelCall,
		t.Attempt, t.Attempts, t.InputTokens, t.OutputTokens, t.CostMicroUSD, t.Slice, t.TraceParent,
		t.ModelCalls, t.UsageSettledAt)...)
	if err != nil {
		return err
	}
	if n == 0 {
		now, err := tx.Turn(t.ID)
		if err != nil {
			return err
		}
		return guardFailed("turn", t.ID, now.State, prior, now.OwnerFence, fence)
	}
	if prior == session.Queued && t.State != session.Queued {
		if _, err := tx.exec(leaveQueue, t.ID); err != nil {
			return err
		}
	}
	if t.State.Terminal() || !t.CancelRequestedAt.IsZero() {
		tx.touch(TopicTurns)
	}
	if t.OwnerFence != fence && prior != session.Queued { // a new owner looks for what its predecessor left
		tx.touch(TopicActions)
		tx.touch(TopicApprovals)
	}
	return nil
}

// guardFailed says which half of a guard did not hold.
func guardFailed[S ~string](what string, id any, state, prior S, current, fence protocol.Fence) error {
	if current != fence || state == prior {
		return protocol.Errorf(protocol.CodeStaleFence, "%s %v is under fence %s; a write under %s is late", what, id, current, fence)
	}
	return protocol.Errorf(protocol.CodeConflict, "%s %v is %s, not %s", what, id, state, prior)
}

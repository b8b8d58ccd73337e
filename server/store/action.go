package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

const actionColumns = `a.id, a.turn, a.session, a.tenant, a.principal, a.call_id, a.tool, a.alias, a.placement, a.effect, a.recovery,
	a.state, a.arguments, a.arguments_digest, a.destination, a.resource_key, a.idempotency_key, a.pre_image_digest, a.fence,
	a.attempt, a.approval, a.superseded_by, a.intent_at, a.dispatched_at, a.outcome_at, a.result, a.code, a.evidence,
	a.resolution, a.resolution_note, a.resolved_by, a.resolved_at`

func scanAction(r scanner) (a session.Action, err error) {
	err = r.Scan(&a.ID, &a.Turn, &a.Session, &a.Tenant, &a.Principal, &a.CallID, &a.Tool, &a.Alias, &a.Placement, &a.Effect, &a.Recovery,
		&a.State, &a.Arguments, &a.ArgumentsDigest, &a.Destination, &a.ResourceKey, &a.IdempotencyKey, &a.PreImageDigest, &a.Fence,
		&a.Attempt, &a.Approval, &a.SupersededBy, at(&a.IntentAt), at(&a.DispatchedAt), at(&a.OutcomeAt), blob(&a.Result), &a.Code, &a.Evidence,
		&a.Resolution, &a.ResolutionNote, &a.ResolvedBy, at(&a.ResolvedAt))
	return a, err
}

var insertAction = define(`INSERT INTO actions
	(id, turn, session, tenant, principal, call_id, tool, alias, placement, effect, recovery, prior_state, state,
	 arguments, arguments_digest, destination, resource_key, idempotency_key, pre_image_digest, fence, attempt, approval,
	 superseded_by, intent_at, dispatched_at, outcome_at, result, code, evidence, resolution, resolution_note, resolved_by, resolved_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, '', $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
	 $22, $23, $24, $25, $26, $27, $28, '', '', '', 0) ON CONFLICT DO NOTHING`)

// InsertAction commits an intent. An action that was dispatched before it was
// stored is refused by the database: ” → DISPATCHED is no legal step. INV-4.
func (tx *Tx) InsertAction(a session.Action) error {
	t, err := tx.Turn(a.Turn)
	if err != nil {
		return err
	}
	n, err := tx.exec(insertAction, a.ID, a.Turn, t.Session, t.Tenant, t.Principal, a.CallID, a.Tool, a.Alias,
		a.Placement, a.Effect, a.Recovery, a.State, a.Arguments, a.ArgumentsDigest, a.Destination, a.ResourceKey,
		a.IdempotencyKey, a.PreImageDigest, a.Fence, a.Attempt, a.Approval, a.SupersededBy, a.IntentAt, a.DispatchedAt,
		a.OutcomeAt, a.Result, a.Code, a.Evidence)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "action %s exists already", a.ID)
	}
	tx.touch(TopicActions)
	return err
}

var (
	actionByID      = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + ` AND a.id = $3`)
	actionsOfTurn   = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + ` AND a.turn = $3 ORDER BY a.intent_at, a.id`)
	actionOfAttempt = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + ` AND a.id = (
		SELECT att.subject_id FROM attempts att WHERE att.id = $3 AND att.subject_kind = 'agent-action')`)
	openActionsIn = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + ` AND ` + stateIs("a.state", "$3") + `
		AND a.state IN ` + openActions + ` ORDER BY a.intent_at, a.id LIMIT $4`)
	intentsOwned = define(`SELECT ` + actionColumns + ` FROM actions a JOIN turns t ON t.id = a.turn WHERE ` + own("a") + ` AND a.state = 'INTENDED'
		AND a.state IN ` + openActions + ` AND t.owner = $3 ORDER BY a.intent_at, a.id LIMIT $4`)
	endedActionsIn = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + ` AND a.state = $3
		ORDER BY a.intent_at, a.id LIMIT $4`)
)

func (tx *Tx) Action(id protocol.ActionID) (session.Action, error) {
	return one(tx, "action", id, scanAction, actionByID, tx.mine(id))
}

func (tx *Tx) ActionsOfTurn(t protocol.TurnID) ([]session.Action, error) {
	return list(tx, scanAction, actionsOfTurn, tx.mine(t))
}

// ActionOfAttempt is the device action that an attempt carries out.
func (tx *Tx) ActionOfAttempt(id protocol.AttemptID) (session.Action, error) {
	return one(tx, "action of attempt", id, scanAction, actionOfAttempt, tx.mine(id))
}

// ActionsIn returns actions in one of the states, oldest first. States that do
// not end are answered by an index; a tick asks for no others.
func (tx *Tx) ActionsIn(limit int, states ...session.ActionState) ([]session.Action, error) {
	return merged(limited(limit), states, func(st session.ActionState, limit int) ([]session.Action, error) {
		if st.Terminal() {
			return list(tx, scanAction, endedActionsIn, tx.mine(st, limit))
		}
		return list(tx, scanAction, openActionsIn, tx.mine(st, limit))
	}, func(a, b session.Action) int {
		return earlier(a.IntentAt, b.IntentAt, a.ID.String(), b.ID.String())
	})
}

// IntentsOwned are the intents of turns whose owner row is the replica's, oldest
// first: a backlog of another replica is not in their way.
func (tx *Tx) IntentsOwned(r protocol.ReplicaID, limit int) ([]session.Action, error) {
	return list(tx, scanAction, intentsOwned, tx.mine(r, limited(limit)))
}

var saveAction = define(`UPDATE actions SET
	prior_state = CASE WHEN state = $6 THEN prior_state ELSE state END, state = $6,
	destination = $7, resource_key = $8, idempotency_key = $9, pre_image_digest = $10, fence = $11, attempt = $12, approval = $13,
	superseded_by = $14, dispatched_at = $15, outcome_at = $16, result = $17, code = $18, evidence = $19
	WHERE ($1 = '' OR (tenant = $1 AND principal = $2)) AND id = $3 AND ` + stateIs("state", "$4") + ` AND fence = $5 AND fence <= $11`)

// SaveAction writes every mutable column, guarded by prior state and fence. What
// the intent bound (tool, arguments, placement, classes) never changes, and a
// resolution has its own method. INV-3.
func (tx *Tx) SaveAction(a session.Action, prior session.ActionState, fence protocol.Fence) error {
	n, err := tx.exec(saveAction, tx.mine(a.ID, prior, fence, a.State, a.Destination, a.ResourceKey, a.IdempotencyKey,
		a.PreImageDigest, a.Fence, a.Attempt, a.Approval, a.SupersededBy, a.DispatchedAt, a.OutcomeAt, a.Result, a.Code, a.Evidence)...)
	if err != nil {
		return err
	}
	if n == 0 {
		now, err := tx.Action(a.ID)
		if err != nil {
			return err
		}
		return guardFailed("action", a.ID, now.State, prior, now.Fence, fence)
	}
	if a.State == session.Intended {
		tx.touch(TopicActions)
	}
	return nil
}

var (
	unresolvedUnknown = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + `
		AND a.principal = $3 AND a.resource_key = $4 AND a.state = 'UNKNOWN' AND a.resolution = '' ORDER BY a.outcome_at, a.id LIMIT 1`)
	unknowns = define(`SELECT ` + actionColumns + ` FROM actions a WHERE ` + own("a") + `
		AND a.state = 'UNKNOWN' AND ($3 = 1 OR a.resolution = '') ORDER BY a.outcome_at, a.id LIMIT $4`)
	resolveUnknown = define(`UPDATE actions SET resolution = $2, resolution_note = $3, resolved_by = $4, resolved_at = $5
		WHERE id = $1 AND state = 'UNKNOWN' AND resolution = ''`)
)

// UnresolvedUnknown returns the unresolved unknown action on a resource key of a principal. INV-5.
func (tx *Tx) UnresolvedUnknown(principal protocol.PrincipalID, resourceKey string) (session.Action, error) {
	return one(tx, "unresolved action on", resourceKey, scanAction, unresolvedUnknown, tx.mine(principal, resourceKey))
}

// Unknowns is the unknown inbox of the caller.
func (tx *Tx) Unknowns(includeResolved bool) ([]session.Action, error) {
	return list(tx, scanAction, unknowns, tx.mine(includeResolved, maxPage))
}

// ResolveUnknown appends a resolution once; it changes no state.
func (tx *Tx) ResolveUnknown(id protocol.ActionID, resolution, note string) (session.Action, error) {
	a, err := tx.Action(id)
	switch {
	case err != nil:
		return a, err
	case resolution == "":
		return a, protocol.Errorf(protocol.CodeInvalidArgument, "a resolution says what happened")
	case a.State != session.ActionUnknown:
		return a, protocol.Errorf(protocol.CodeFailedPrecondition, "action %s is %s: only an unknown outcome is resolved", id, a.State)
	case a.Resolution != "":
		return a, protocol.Errorf(protocol.CodeConflict, "action %s was resolved already as %q", id, a.Resolution)
	}
	a.Resolution, a.ResolutionNote, a.ResolvedBy, a.ResolvedAt = resolution, note, tx.caller.principal, tx.Now
	if _, err := tx.exec(resolveUnknown, id, a.Resolution, a.ResolutionNote, a.ResolvedBy, a.ResolvedAt); err != nil {
		return a, err
	}
	tx.touch(TopicTurns)
	return a, nil
}

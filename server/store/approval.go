package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

const approvalColumns = `p.id, p.action, p.turn, p.session, p.tenant, p.principal, p.state, p.tool, p.destination, p.arguments,
	p.digest, p.created_at, p.expires_at, p.decided_at, p.decided_by, p.reason, p.consumed_by, p.consumed_at`

func scanApproval(r scanner) (a session.Approval, err error) {
	err = r.Scan(&a.ID, &a.Action, &a.Turn, &a.Session, &a.Tenant, &a.Principal, &a.State, &a.Tool, &a.Destination, &a.Arguments,
		&a.Digest, at(&a.CreatedAt), at(&a.ExpiresAt), at(&a.DecidedAt), &a.DecidedBy, &a.Reason, &a.ConsumedBy, at(&a.ConsumedAt))
	return a, err
}

var insertApproval = define(`INSERT INTO approvals
	(id, action, turn, session, tenant, principal, prior_state, state, tool, destination, arguments, digest,
	 created_at, expires_at, decided_at, decided_by, reason, consumed_by, consumed_at)
	VALUES ($1, $2, $3, $4, $5, $6, '', $7, $8, $9, $10, $11, $12, $13, 0, '', '', '', 0) ON CONFLICT DO NOTHING`)

// InsertApproval refuses a second pending approval of one subject. INV-6.
func (tx *Tx) InsertApproval(a session.Approval) error {
	subject, err := tx.Action(a.Action)
	if err != nil {
		return err
	}
	n, err := tx.exec(insertApproval, a.ID, a.Action, subject.Turn, subject.Session, subject.Tenant, subject.Principal,
		a.State, a.Tool, a.Destination, a.Arguments, a.Digest, a.CreatedAt, a.ExpiresAt)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeConflict, "action %s has a pending approval already", a.Action)
	}
	tx.touch(TopicApprovals)
	return err
}

var (
	approvalByID   = define(`SELECT ` + approvalColumns + ` FROM approvals p WHERE ` + own("p") + ` AND p.id = $3`)
	approvalsAsked = define(`SELECT ` + approvalColumns + ` FROM approvals p WHERE ` + own("p") + `
		AND p.state IN ('PENDING', 'APPROVED') AND p.state = 'PENDING' ORDER BY p.created_at, p.id LIMIT $3`)
	approvalsOf = define(`SELECT ` + approvalColumns + ` FROM approvals p WHERE p.tenant = $1 AND p.principal = $2
		ORDER BY p.created_at, p.id LIMIT $3`)
	approvalsOfAll  = define(`SELECT ` + approvalColumns + ` FROM approvals p ORDER BY p.created_at, p.id LIMIT $1`)
	approvalsOfTurn = define(`SELECT ` + approvalColumns + ` FROM approvals p WHERE ` + own("p") + `
		AND p.turn = $3 ORDER BY p.created_at, p.id`)
	approvalsPastExpiry = define(`SELECT ` + approvalColumns + ` FROM approvals p WHERE ` + own("p") + `
		AND p.state IN ('PENDING', 'APPROVED') AND p.expires_at <= $3 ORDER BY p.expires_at, p.id LIMIT $4`)
)

func (tx *Tx) Approval(id protocol.ApprovalID) (session.Approval, error) {
	return one(tx, "approval", id, scanApproval, approvalByID, tx.mine(id))
}

func (tx *Tx) Approvals(includeDecided bool) ([]session.Approval, error) {
	switch {
	case !includeDecided:
		return list(tx, scanApproval, approvalsAsked, tx.mine(maxPage))
	case tx.caller.Internal():
		return list(tx, scanApproval, approvalsOfAll, []any{maxPage})
	}
	return list(tx, scanApproval, approvalsOf, tx.mine(maxPage))
}

func (tx *Tx) ApprovalsOfTurn(t protocol.TurnID) ([]session.Approval, error) {
	return list(tx, scanApproval, approvalsOfTurn, tx.mine(t))
}

// ApprovalsPastExpiry are pending and unused approvals whose time is over.
func (tx *Tx) ApprovalsPastExpiry(limit int) ([]session.Approval, error) {
	return list(tx, scanApproval, approvalsPastExpiry, tx.mine(tx.Now, limited(limit)))
}

var saveApproval = define(`UPDATE approvals SET
	prior_state = CASE WHEN state = $5 THEN prior_state ELSE state END, state = $5,
	decided_at = $6, decided_by = $7, reason = $8
	WHERE ($1 = '' OR (tenant = $1 AND principal = $2)) AND id = $3 AND ` + stateIs("state", "$4"))

// SaveApproval is guarded by the prior state. It decides, expires and cancels;
// only ConsumeApproval consumes.
func (tx *Tx) SaveApproval(a session.Approval, prior session.ApprovalState) error {
	if a.State == session.ApprovalConsumed {
		return protocol.Errorf(protocol.CodeInternal, "approval %s is consumed by ConsumeApproval alone", a.ID)
	}
	n, err := tx.exec(saveApproval, tx.mine(a.ID, prior, a.State, a.DecidedAt, a.DecidedBy, a.Reason)...)
	if err != nil {
		return err
	}
	if n == 0 {
		return tx.approvalMoved(a.ID, prior)
	}
	tx.touch(TopicApprovals)
	return nil
}

func (tx *Tx) approvalMoved(id protocol.ApprovalID, prior session.ApprovalState) error {
	now, err := tx.Approval(id)
	if err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodeConflict, "approval %s is %s, not %s", id, now.State, prior)
}

var consumeApproval = define(`UPDATE approvals SET prior_state = state, state = 'CONSUMED', consumed_by = $4, consumed_at = $6
	WHERE ($1 = '' OR (tenant = $1 AND principal = $2)) AND id = $3 AND state = 'APPROVED' AND digest = $5 AND expires_at > $6
		AND NOT EXISTS (SELECT 1 FROM approvals x WHERE x.consumed_by = $4 AND x.consumed_by <> '')`)

// ConsumeApproval is APPROVED → CONSUMED by exactly one action, for exactly the
// digest that was approved; a constraint holds it. INV-6.
func (tx *Tx) ConsumeApproval(id protocol.ApprovalID, by protocol.ActionID, digest string) error {
	now, err := tx.Approval(id)
	if err != nil {
		return err
	}
	if now.State == session.ApprovalApproved { // the words for why not are the pure step's
		if _, err := now.Consume(by, digest, tx.Now); err != nil {
			return err
		}
	}
	n, err := tx.exec(consumeApproval, tx.mine(id, by, digest, tx.Now)...)
	if err != nil {
		return err
	}
	if n == 0 {
		return tx.approvalMoved(id, session.ApprovalApproved)
	}
	tx.touch(TopicApprovals)
	return nil
}

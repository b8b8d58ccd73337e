package store

import (
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

const attemptColumns = `a.id, a.tenant, a.principal, a.subject_kind, a.subject_id, a.number, a.state, a.requirements, a.policy_digest,
	a.work, a.spec_digest, a.runner, a.boot_nonce, a.fence, a.authority_ttl, a.retention, a.queued_at, a.placement_deadline,
	a.offered_at, a.claimed_at, a.started_at, a.renewed_at, a.deadline, a.ended_at, a.stop_at, a.stop_reason, a.accepted_seq,
	a.reason, a.message, a.defer_reason, a.trace_parent, a.idempotency_key, a.allocation, a.allocations, a.allocation_asked_at`

func scanAttempt(r scanner) (a execution.Attempt, err error) {
	err = r.Scan(&a.ID, &a.Tenant, &a.Principal, &a.SubjectKind, &a.SubjectID, &a.Number, &a.State, document(&a.Requirements), &a.PolicyDigest,
		blob(&a.Work), &a.SpecDigest, &a.Runner, &a.BootNonce, &a.Fence, span(&a.AuthorityTTL), span(&a.Retention), at(&a.QueuedAt), at(&a.PlacementDeadline),
		at(&a.OfferedAt), at(&a.ClaimedAt), at(&a.StartedAt), at(&a.RenewedAt), at(&a.Deadline), at(&a.EndedAt), at(&a.StopAt), &a.StopReason, &a.AcceptedSeq,
		&a.Reason, &a.Message, &a.DeferReason, &a.TraceParent, &a.IdempotencyKey, &a.Allocation, &a.Allocations, at(&a.AllocationAskedAt))
	return a, err
}

var insertAttempt = define(`INSERT INTO attempts
	(id, tenant, principal, subject_kind, subject_id, number, prior_state, state, requirements, policy_digest,
	 work, spec_digest, runner, boot_nonce, fence, authority_ttl, retention, queued_at, placement_deadline,
	 offered_at, claimed_at, started_at, renewed_at, deadline, ended_at, stop_at, stop_reason, accepted_seq,
	 reason, message, defer_reason, trace_parent, idempotency_key)
	VALUES ($1, $2, $3, $4, $5, $6, '', $7, $8, $9, $10, $11, $12, '', 0, $13, $14, $15, $16,
	 0, 0, 0, 0, $17, 0, $18, $19, 0, $20, $21, $22, $23, $24) ON CONFLICT DO NOTHING`)

// InsertAttempt queues an attempt; claim, fence and progress come later.
func (tx *Tx) InsertAttempt(a execution.Attempt) error {
	if err := tx.concerns("an attempt", a.Tenant, a.Principal); err != nil {
		return err
	}
	n, err := tx.exec(insertAttempt, a.ID, a.Tenant, a.Principal, a.SubjectKind, a.SubjectID, a.Number, a.State, toJSON(a.Requirements), a.PolicyDigest,
		a.Work, a.SpecDigest, a.Runner, a.AuthorityTTL, a.Retention, a.QueuedAt, a.PlacementDeadline,
		a.Deadline, a.StopAt, a.StopReason, a.Reason, a.Message, a.DeferReason, a.TraceParent, a.IdempotencyKey)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "attempt %d of %s exists already", a.Number, a.SubjectID)
	}
	tx.touch(TopicAttempts)
	return err
}

var (
	attemptByID       = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + ` AND a.id = $3`)
	attemptLocked     = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + ` AND a.id = $3{lock}`)
	attemptsOfSubject = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + `
		AND a.subject_kind = $3 AND a.subject_id = $4 ORDER BY a.number`)
	heldAttemptsIn = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + `
		AND ` + stateIs("a.state", "$3") + ` AND a.state IN ` + heldStates + ` ORDER BY a.queued_at, a.id LIMIT $4`)
	endedAttemptsIn = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + `
		AND a.state = $3 ORDER BY a.queued_at, a.id LIMIT $4`)
	attemptsOfRunner = define(`SELECT ` + attemptColumns + ` FROM attempts a WHERE ` + held("a") + `
		AND a.runner = $3 AND a.state IN ` + heldStates + ` ORDER BY a.queued_at, a.id`)
)

func (tx *Tx) Attempt(id protocol.AttemptID) (execution.Attempt, error) {
	return one(tx, "attempt", id, scanAttempt, attemptByID, tx.mine(id))
}

func (tx *Tx) AttemptsOfSubject(kind execution.SubjectKind, subject string) ([]execution.Attempt, error) {
	return list(tx, scanAttempt, attemptsOfSubject, tx.mine(kind, subject))
}

// AttemptsIn returns attempts in one of the states, oldest first. States that do
// not end are answered by an index; a tick asks for no others.
func (tx *Tx) AttemptsIn(limit int, states ...execution.AttemptState) ([]execution.Attempt, error) {
	return merged(limited(limit), states, func(st execution.AttemptState, limit int) ([]execution.Attempt, error) {
		if st.Terminal() {
			return list(tx, scanAttempt, endedAttemptsIn, tx.mine(st, limit))
		}
		return list(tx, scanAttempt, heldAttemptsIn, tx.mine(st, limit))
	}, func(a, b execution.Attempt) int {
		return earlier(a.QueuedAt, b.QueuedAt, a.ID.String(), b.ID.String())
	})
}

// withoutWork are the columns of attempts that a tick looks at again and again: their work
// may be a megabyte each.
var withoutWork = strings.Replace(attemptColumns, "a.work", "NULL", 1)

var allocatedAttempts = define(`SELECT ` + withoutWork + ` FROM attempts a WHERE ` + held("a") + `
	AND a.allocation <> '' AND a.state IN ` + heldStates + ` ORDER BY a.queued_at, a.id`)

// AllocatedAttempts are those that have an allocation of their own and have not ended. They
// come without their work: Attempt reads one whole.
func (tx *Tx) AllocatedAttempts() ([]execution.Attempt, error) {
	return list(tx, scanAttempt, allocatedAttempts, tx.mine())
}

// AttemptsOfRunner returns its attempts that are not terminal.
func (tx *Tx) AttemptsOfRunner(r protocol.RunnerID) ([]execution.Attempt, error) {
	return list(tx, scanAttempt, attemptsOfRunner, tx.mine(r))
}

var saveAttempt = define(`UPDATE attempts SET
	prior_state = CASE WHEN state = $6 THEN prior_state ELSE state END, state = $6, requirements = $7, work = CASE WHEN $30 = 0 THEN work ELSE $8 END, spec_digest = $9,
	runner = $10, fence = $11, authority_ttl = $12, retention = $13, placement_deadline = $14, offered_at = $15, started_at = $16,
	renewed_at = $17, deadline = $18, ended_at = $19, stop_at = $20, stop_reason = $21, accepted_seq = $22, reason = $23,
	message = $24, defer_reason = $25, trace_parent = $26, allocation = $27, allocations = $28, allocation_asked_at = $29
	WHERE ($1 = '' OR (tenant = $1 AND (principal = $2 OR runner = $2))) AND id = $3 AND ` + stateIs("state", "$4") + ` AND fence = $5 AND fence <= $11
		AND (boot_nonce = '' OR runner = $10)`)

// SaveAttempt writes every mutable column, guarded by prior state and fence; one that has
// no work in hand leaves that as it is, since only an erasure takes it away. Boot
// nonce and claim are ClaimAttempt's, and the runner of a claim never changes. INV-3.
func (tx *Tx) SaveAttempt(a execution.Attempt, prior execution.AttemptState, fence protocol.Fence) error {
	if prior == execution.AttemptOffered && a.State == execution.AttemptClaimed {
		return protocol.Errorf(protocol.CodeInternal, "attempt %s is claimed by ClaimAttempt alone", a.ID)
	}
	n, err := tx.exec(saveAttempt, tx.mine(a.ID, prior, fence, a.State, toJSON(a.Requirements), a.Work, a.SpecDigest,
		a.Runner, a.Fence, a.AuthorityTTL, a.Retention, a.PlacementDeadline, a.OfferedAt, a.StartedAt,
		a.RenewedAt, a.Deadline, a.EndedAt, a.StopAt, a.StopReason, a.AcceptedSeq, a.Reason,
		a.Message, a.DeferReason, a.TraceParent, a.Allocation, a.Allocations, a.AllocationAskedAt, len(a.Work))...)
	if err != nil {
		return err
	}
	if n == 0 {
		now, err := tx.Attempt(a.ID)
		if err != nil {
			return err
		}
		return guardFailed("attempt", a.ID, now.State, prior, now.Fence, fence)
	}
	tx.touch(TopicAttempts)
	return nil
}

var (
	highestFence = define(`SELECT COALESCE(MAX(fence), 0) FROM attempts WHERE subject_kind = $1 AND subject_id = $2`)
	claimAttempt = define(`UPDATE attempts SET prior_state = state, state = 'CLAIMED', boot_nonce = $3, fence = $4, claimed_at = $5, renewed_at = $5
		WHERE id = $1 AND runner = $2 AND state = 'OFFERED' AND boot_nonce = ''`)
)

// ClaimAttempt is OFFERED → CLAIMED by compare-and-set: the same runner and nonce again gets the
// same answer, any other is already claimed (conflict). It sets fence, boot nonce and ClaimedAt. INV-14.
func (tx *Tx) ClaimAttempt(id protocol.AttemptID, runner protocol.RunnerID, bootNonce string) (execution.Attempt, error) {
	if c := tx.caller; c.kind == callerRunner && c.runner != runner {
		return execution.Attempt{}, absent("attempt", id)
	}
	a, err := one(tx, "attempt", id, scanAttempt, attemptLocked, tx.mine(id))
	if err != nil {
		return a, err
	}
	highest, err := first(tx, number, highestFence, []any{a.SubjectKind, a.SubjectID})
	if err != nil {
		return a, err
	}
	fence, err := max(a.Fence, protocol.Fence(highest)).Next(tx.Epoch())
	if err != nil {
		return a, err
	}
	next, repeat, err := a.Claim(execution.Claim{Runner: runner, BootNonce: bootNonce, Fence: fence}, tx.Now)
	if err != nil || repeat {
		return next, err
	}
	n, err := tx.exec(claimAttempt, id, runner, bootNonce, fence, tx.Now)
	if err != nil {
		return a, err
	}
	if n == 0 {
		return a, protocol.Errorf(protocol.CodeConflict, "attempt %s was claimed by another supervisor", id)
	}
	tx.touch(TopicAttempts)
	return next, nil
}

var (
	insertRecord = define(`INSERT INTO attempt_records (attempt, seq, at, body, fence, evidence)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`)
	recordsOf = define(`SELECT r.seq, r.at, r.body, r.fence, r.evidence
		FROM attempt_records r JOIN attempts a ON a.id = r.attempt WHERE ` + held("a") + ` AND a.id = $3 ORDER BY r.seq`)
)

// PutRecords appends journal records of an attempt; known sequences are skipped. Evidence marks a stale fence.
func (tx *Tx) PutRecords(id protocol.AttemptID, fence protocol.Fence, evidence bool, records []Record) error {
	a, err := tx.Attempt(id)
	if err != nil {
		return err
	}
	if err := a.CheckFence(fence); err != nil && !evidence {
		return err
	}
	for _, r := range records {
		if r.Seq < 1 {
			return protocol.Errorf(protocol.CodeInvalidArgument, "record %d of attempt %s: sequences begin at 1", r.Seq, id)
		}
		if _, err := tx.exec(insertRecord, id, r.Seq, r.At, r.Body, fence, evidence); err != nil {
			return err
		}
	}
	if len(records) > 0 {
		tx.touch(TopicAttempts)
	}
	return nil
}

func (tx *Tx) Records(id protocol.AttemptID) ([]Record, error) {
	if _, err := tx.Attempt(id); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (rec Record, err error) {
		err = r.Scan(&rec.Seq, at(&rec.At), blob(&rec.Body), &rec.Fence, flag(&rec.Evidence))
		return rec, err
	}, recordsOf, tx.mine(id))
}

// Record is one journal record of an attempt as it was reported.
type Record struct {
	Seq      int64
	At       time.Time
	Body     []byte // encoded runnerv1.Record
	Fence    protocol.Fence
	Evidence bool
}

package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

const runnerColumns = `r.id, r.tenant, r.owner, r.name, r.thumbprint, r.public_key, r.state, r.facts,
	r.enrolled_at, r.last_seen_at, r.mailbox_seq, r.acked_seq, r.workload`

func scanRunner(r scanner) (v execution.Runner, err error) {
	err = r.Scan(&v.ID, &v.Tenant, &v.Owner, &v.Name, &v.Thumbprint, blob(&v.PublicKey), &v.State, document(&v.Facts),
		at(&v.EnrolledAt), at(&v.LastSeenAt), &v.MailboxSeq, &v.AckedSeq, &v.Workload)
	return v, err
}

var insertRunner = define(`INSERT INTO runners
	(id, tenant, owner, name, thumbprint, public_key, prior_state, state, facts, enrolled_at, last_seen_at, workload)
	VALUES ($1, $2, $3, $4, $5, $6, '', $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING`)

// InsertRunner stores a newly enrolled machine; id and key are unique, and so is the
// workload of one that has not left.
func (tx *Tx) InsertRunner(r execution.Runner) error {
	if tx.administers("", r.Tenant) != nil {
		if err := tx.concerns("a runner", r.Tenant, r.Owner); err != nil {
			return err
		}
	}
	n, err := tx.exec(insertRunner, r.ID, r.Tenant, r.Owner, r.Name, r.Thumbprint, r.PublicKey, r.State, toJSON(r.Facts),
		r.EnrolledAt, r.LastSeenAt, r.Workload)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "runner %s is enrolled already", r.ID)
	}
	tx.touch(TopicAttempts)
	return err
}

var (
	runnerByID         = define(`SELECT ` + runnerColumns + ` FROM runners r WHERE ` + reachable("r") + ` AND r.id = $4`)
	runnerByThumbprint = define(`SELECT ` + runnerColumns + ` FROM runners r WHERE ` + reachable("r") + ` AND r.thumbprint = $4`)
	runnerByWorkload   = define(`SELECT ` + runnerColumns + ` FROM runners r WHERE ` + reachable("r") + `
		AND r.workload = $4 AND r.workload <> '' AND r.state <> 'LEFT'`)
	runnersOf = define(`SELECT ` + runnerColumns + ` FROM runners r WHERE ` + reachable("r") + ` AND r.state = 'ACTIVE'
		ORDER BY r.tenant, r.name, r.id`)
)

func (tx *Tx) Runner(id protocol.RunnerID) (execution.Runner, error) {
	return one(tx, "runner", id, scanRunner, runnerByID, tx.managing(id))
}

func (tx *Tx) RunnerByThumbprint(thumbprint string) (execution.Runner, error) {
	return one(tx, "runner with key", thumbprint, scanRunner, runnerByThumbprint, tx.managing(thumbprint))
}

// RunnerOfWorkload is the machine that holds a workload: active, or revoked and not freed.
func (tx *Tx) RunnerOfWorkload(workload string) (execution.Runner, error) {
	return one(tx, "runner of workload", workload, scanRunner, runnerByWorkload, tx.managing(workload))
}

var freeWorkload = define(`UPDATE runners SET workload = '' WHERE id = $1 AND state <> 'ACTIVE'`)

// FreeWorkload lets another machine have the workload of one that has ended. Its owner and
// an admin may, and never the machine itself.
func (tx *Tx) FreeWorkload(id protocol.RunnerID) error {
	r, err := tx.commanded("freeing a node", id)
	if err != nil {
		return err
	}
	if tx.caller.kind == callerRunner {
		return protocol.Errorf(protocol.CodePermissionDenied, "a runner does not free its node: its owner does")
	}
	n, err := tx.exec(freeWorkload, id)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "runner %s is %s: only the node of one that has ended is freed", r.ID, r.State)
	}
	return err
}

// ActiveRunners: a principal's own and those bound to it; an admin's: the tenant's; internal: all.
func (tx *Tx) ActiveRunners() ([]execution.Runner, error) {
	return list(tx, scanRunner, runnersOf, tx.managing())
}

var saveRunner = define(`UPDATE runners SET
	prior_state = CASE WHEN state = $3 THEN prior_state ELSE state END, state = $3, name = $4, facts = $5, last_seen_at = $6
	WHERE id = $1 AND state = $2`)

// SaveRunner writes name, state, facts and last-seen, guarded by the prior state.
// The machine itself, its owner and an admin may; a bound principal may not.
func (tx *Tx) SaveRunner(r execution.Runner, prior execution.RunnerState) error {
	now, err := tx.commanded("changing a runner", r.ID)
	if err != nil {
		return err
	}
	n, err := tx.exec(saveRunner, r.ID, prior, r.State, r.Name, toJSON(r.Facts), r.LastSeenAt)
	if err != nil {
		return err
	}
	if n == 0 {
		return protocol.Errorf(protocol.CodeConflict, "runner %s is %s, not %s", r.ID, now.State, prior)
	}
	tx.touch(TopicAttempts)
	return nil
}

// commanded is a runner that the caller may change: itself, its owner's, or one
// of the admin's tenant. Absent stays absent for everybody else.
func (tx *Tx) commanded(what string, id protocol.RunnerID) (execution.Runner, error) {
	r, err := tx.Runner(id)
	if err != nil {
		return r, err
	}
	if c := tx.caller; !c.Internal() && c.runner != id && c.principal != r.Owner && !c.Admin() {
		return r, protocol.Errorf(protocol.CodePermissionDenied, "%s needs its owner or an admin of the tenant", what)
	}
	return r, nil
}

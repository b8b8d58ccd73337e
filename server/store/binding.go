package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

const bindingColumns = `b.id, b.tenant, b.principal, b.runner, b.actions, b.created_at, b.removed_at`

func scanBinding(r scanner) (b execution.Binding, err error) {
	err = r.Scan(&b.ID, &b.Tenant, &b.Principal, &b.Runner, document(&b.Actions), at(&b.CreatedAt), at(&b.RemovedAt))
	return b, err
}

// boundTo shows a binding to its principal, to the runner and its owner, and to
// an admin of the tenant.
const boundTo = `($1 = '' OR (b.tenant = $1 AND (b.principal = $2 OR b.runner = $2 OR $3 = 1
	OR EXISTS (SELECT 1 FROM runners rx WHERE rx.id = b.runner AND rx.owner = $2))))`

var (
	bindingInForce = define(`SELECT ` + bindingColumns + ` FROM bindings b
		WHERE ` + boundTo + ` AND b.principal = $4 AND b.runner = $5 AND b.removed_at = 0`)
	bindingByID = define(`SELECT ` + bindingColumns + ` FROM bindings b WHERE ` + boundTo + ` AND b.id = $4`)
	bindingsOf  = define(`SELECT ` + bindingColumns + ` FROM bindings b
		WHERE ` + boundTo + ` AND b.principal = $4 AND b.removed_at = 0 ORDER BY b.created_at, b.id`)
	bindingsOfRunner = define(`SELECT ` + bindingColumns + ` FROM bindings b
		WHERE ` + boundTo + ` AND b.runner = $4 AND b.removed_at = 0 ORDER BY b.created_at, b.id`)
	insertBinding = define(`INSERT INTO bindings (id, tenant, principal, runner, actions, created_at, removed_at)
		VALUES ($1, $2, $3, $4, $5, $6, 0)`)
	changeBinding = define(`UPDATE bindings SET actions = $2 WHERE id = $1 AND removed_at = 0`)
	removeBinding = define(`UPDATE bindings SET removed_at = $2 WHERE id = $1 AND removed_at = 0`)
)

// PutBinding binds a principal to a runner, or changes the actions of the binding
// in force. The runner's owner and an admin may; both ends are of one tenant.
func (tx *Tx) PutBinding(b execution.Binding) (execution.Binding, error) {
	r, err := tx.commanded("binding a runner", b.Runner)
	if err != nil {
		return b, err
	}
	if tx.caller.kind == callerRunner {
		return b, protocol.Errorf(protocol.CodePermissionDenied, "a runner does not bind itself: its owner does")
	}
	if r.Tenant != b.Tenant {
		return b, absent("runner", b.Runner)
	}
	now, err := first(tx, scanBinding, bindingInForce, tx.managing(b.Principal, b.Runner))
	switch {
	case err == nil:
		now.Actions = b.Actions
		b = now
		_, err = tx.exec(changeBinding, b.ID, toJSON(b.Actions))
	case err == errNoRow:
		if b.ID.IsZero() {
			b.ID = newID[protocol.BindingID](tx)
		}
		if b.CreatedAt.IsZero() {
			b.CreatedAt = tx.Now
		}
		_, err = tx.exec(insertBinding, b.ID, b.Tenant, b.Principal, b.Runner, toJSON(b.Actions), b.CreatedAt)
	}
	tx.touch(TopicAttempts)
	return b, err
}

// RemoveBinding ends a binding; its principal may give it up too.
func (tx *Tx) RemoveBinding(id protocol.BindingID) error {
	if _, err := one(tx, "binding", id, scanBinding, bindingByID, tx.managing(id)); err != nil {
		return err
	}
	_, err := tx.exec(removeBinding, id, tx.Now)
	tx.touch(TopicAttempts)
	return err
}

// BindingsOf a principal that are in force.
func (tx *Tx) BindingsOf(p protocol.PrincipalID) ([]execution.Binding, error) {
	return list(tx, scanBinding, bindingsOf, tx.managing(p))
}

// BindingsOfRunner that are in force.
func (tx *Tx) BindingsOfRunner(r protocol.RunnerID) ([]execution.Binding, error) {
	return list(tx, scanBinding, bindingsOfRunner, tx.managing(r))
}

const joinCodeColumns = `j.hash, j.tenant, j.principal, j.name, j.actions, j.created_at, j.expires_at, j.used_at, j.runner, j.thumbprint`

func scanJoinCode(r scanner) (c execution.JoinCode, err error) {
	err = r.Scan(blob(&c.Hash), &c.Tenant, &c.Principal, &c.Name, document(&c.Actions), at(&c.CreatedAt), at(&c.ExpiresAt),
		at(&c.UsedAt), &c.Runner, &c.Thumbprint)
	return c, err
}

var (
	insertJoinCode = define(`INSERT INTO join_codes
		(hash, tenant, principal, name, actions, created_at, expires_at, used_at, runner, thumbprint)
		VALUES ($1, $2, $3, $4, $5, $6, $7, 0, '', '') ON CONFLICT DO NOTHING`)
	joinCodeByHash = define(`SELECT ` + joinCodeColumns + ` FROM join_codes j WHERE ` + managed("j") + ` AND j.hash = $4`)
	useJoinCode    = define(`UPDATE join_codes SET used_at = $2, thumbprint = $3, runner = $4 WHERE hash = $1 AND used_at = 0`)
)

// InsertJoinCode keeps the hash of an invitation; the code itself is never stored.
func (tx *Tx) InsertJoinCode(c execution.JoinCode) error {
	if tx.administers("", c.Tenant) != nil {
		if err := tx.concerns("a join code", c.Tenant, c.Principal); err != nil {
			return err
		}
	}
	n, err := tx.exec(insertJoinCode, c.Hash, c.Tenant, c.Principal, c.Name, toJSON(c.Actions), c.CreatedAt, c.ExpiresAt)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "this join code exists already")
	}
	return err
}

func (tx *Tx) JoinCode(hash []byte) (execution.JoinCode, error) {
	c, err := first(tx, scanJoinCode, joinCodeByHash, tx.managing(hash))
	if err == errNoRow {
		err = errJoinCode
	}
	return c, err
}

var errJoinCode = protocol.Errorf(protocol.CodeNotFound, "this join code is not known: make a new one with `bivouac edge invite`")

// JoinCodeFor is a code that a key may use, or has used: single use, the same key may
// repeat, another key or an expired code is refused.
func (tx *Tx) JoinCodeFor(hash []byte, thumbprint string, runner protocol.RunnerID) (execution.JoinCode, error) {
	c, err := tx.JoinCode(hash)
	switch {
	case err != nil:
		return c, err
	case thumbprint == "" || runner.IsZero():
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "a join code is used by a key and its runner id")
	case c.Thumbprint == thumbprint && c.Runner == runner:
		return c, nil
	case !c.UsedAt.IsZero():
		return c, protocol.Errorf(protocol.CodeFailedPrecondition, "this join code was used already, by another machine or by this one before it left: make a new one with `bivouac edge invite`")
	case !tx.Now.Before(c.ExpiresAt):
		return c, protocol.Errorf(protocol.CodeFailedPrecondition, "this join code expired at %s: make a new one with `bivouac edge invite`",
			c.ExpiresAt.Format("15:04:05 MST"))
	}
	return c, nil
}

// UseJoinCode uses a code up for a key, as JoinCodeFor allows.
func (tx *Tx) UseJoinCode(hash []byte, thumbprint string, runner protocol.RunnerID) error {
	c, err := tx.JoinCodeFor(hash, thumbprint, runner)
	if err != nil || !c.UsedAt.IsZero() {
		return err
	}
	n, err := tx.exec(useJoinCode, hash, tx.Now, thumbprint, runner)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeConflict, "this join code is being used by another machine")
	}
	return err
}

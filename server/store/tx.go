package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"bivouac/edge/protocol"
)

// Tx is one transaction of one caller. Now is fixed when it begins. It serves
// one goroutine and ends with the function it was given to.
type Tx struct {
	Now    time.Time
	caller Caller
	store  *Store
	on     connection
	// ctx is the caller's in a View and the store's own in an Update.
	ctx     context.Context
	writes  bool
	over    bool
	single  bool // one statement is all
	asking  bool // and it was asked
	touched map[Topic]bool
	// asked says that the commit was asked for and its answer did not come.
	asked bool
	// broken is the first refusal of the engine. PostgreSQL goes no further after
	// one and SQLite would, so the whole call fails on both, even when the caller
	// passes over the error.
	broken error
}

// connection runs statements in the open transaction of one engine.
type connection interface {
	exec(ctx context.Context, st *statement, args []any) (sql.Result, error)
	query(ctx context.Context, st *statement, args []any) (*sql.Rows, error)
}

// Caller of this transaction.
func (tx *Tx) Caller() Caller { return tx.caller }

// Epoch for new fences.
func (tx *Tx) Epoch() uint32 { return tx.store.epoch }

// touch notes that a topic is to be woken after the commit.
func (tx *Tx) touch(t Topic) {
	if tx.touched == nil {
		tx.touched = make(map[Topic]bool, 2)
	}
	tx.touched[t] = true
}

// Wake wakes whoever waits for a topic, here or at another server, after the commit.
func (tx *Tx) Wake(t Topic) { tx.touch(t) }

// mine puts the caller's tenant and own id before the other parameters.
func (tx *Tx) mine(args ...any) []any {
	tenant, id := tx.caller.self()
	return append([]any{tenant, id}, args...)
}

// managing is mine with the admin mark as third parameter.
func (tx *Tx) managing(args ...any) []any {
	tenant, id := tx.caller.self()
	return append([]any{tenant, id, tx.caller.Admin()}, args...)
}

// internal refuses everybody but loops and operators.
func (tx *Tx) internal(what string) error {
	if tx.caller.Internal() {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "%s is not for %s", what, tx.caller)
}

// concerns refuses a new row that is not the caller's own.
func (tx *Tx) concerns(what string, tenant protocol.TenantID, principal protocol.PrincipalID) error {
	c := tx.caller
	if c.Internal() || (c.kind == callerPrincipal && c.tenant == tenant && c.principal == principal) {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "%s cannot make %s of another", c, what)
}

// administers refuses everybody but internal callers and the tenant's admins.
func (tx *Tx) administers(what string, tenant protocol.TenantID) error {
	c := tx.caller
	if c.Internal() || (c.Admin() && c.tenant == tenant) {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "%s needs an admin of the tenant: ask one", what)
}

// usable refuses a transaction that has ended, broken or must not write.
func (tx *Tx) usable(write bool) error {
	switch {
	case tx.over:
		return errors.New("store: the transaction has ended; use it only inside its function")
	case tx.broken != nil:
		return fmt.Errorf("store: an earlier statement of this transaction failed: %w", tx.broken)
	case tx.single && tx.asking:
		return errors.New("store: a Lookup asks one statement; use View")
	case write && !tx.writes:
		return errors.New("store: a View does not write; use Update")
	case !tx.writes && tx.ctx.Err() != nil:
		return context.Cause(tx.ctx)
	}
	return nil
}

// exec runs a statement and returns the number of rows it changed.
func (tx *Tx) exec(st *statement, args ...any) (int64, error) {
	if err := tx.usable(true); err != nil {
		return 0, err
	}
	for i := range args {
		args[i] = encode(args[i])
	}
	res, err := tx.on.exec(tx.ctx, st, args)
	if err != nil {
		return 0, tx.fail(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, tx.fail(err)
	}
	return n, nil
}

// query runs a statement that returns rows; write marks INSERT … RETURNING.
func (tx *Tx) query(write bool, st *statement, args []any) (*sql.Rows, error) {
	if err := tx.usable(write); err != nil {
		return nil, err
	}
	tx.asking = true
	for i := range args {
		args[i] = encode(args[i])
	}
	rows, err := tx.on.query(tx.ctx, st, args)
	if err != nil {
		return nil, tx.fail(err)
	}
	return rows, nil
}

func (tx *Tx) fail(err error) error {
	if tx.broken == nil {
		tx.broken = err
	}
	return tx.store.explain(err)
}

// errNoRow says that a statement found nothing; methods turn it into not_found.
var errNoRow = errors.New("store: no row")

// scanner is a row.
type scanner interface{ Scan(...any) error }

// list reads all rows of a statement.
func list[T any](tx *Tx, scan func(scanner) (T, error), st *statement, args []any) ([]T, error) {
	return collect(tx, false, scan, st, args)
}

// first reads one row, or errNoRow.
func first[T any](tx *Tx, scan func(scanner) (T, error), st *statement, args []any) (T, error) {
	return head(collect(tx, false, scan, st, args))
}

// returning reads the one row of a writing statement, or errNoRow.
func returning[T any](tx *Tx, scan func(scanner) (T, error), st *statement, args []any) (T, error) {
	return head(collect(tx, true, scan, st, args))
}

func collect[T any](tx *Tx, write bool, scan func(scanner) (T, error), st *statement, args []any) ([]T, error) {
	rows, err := tx.query(write, st, args)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("store: read row: %w", err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, tx.fail(err)
	}
	return out, nil
}

func head[T any](all []T, err error) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	if len(all) == 0 {
		return none, errNoRow
	}
	return all[0], nil
}

// one reads one row and calls a missing or foreign one absent. INV-9.
func one[T any](tx *Tx, what string, id any, scan func(scanner) (T, error), st *statement, args []any) (T, error) {
	v, err := first(tx, scan, st, args)
	if errors.Is(err, errNoRow) {
		return v, absent(what, id)
	}
	return v, err
}

// absent is the one answer for a row that is not there and for one that is
// another's. INV-9.
func absent(what string, id any) error {
	if list := shownBy[what]; list != "" {
		return protocol.Errorf(protocol.CodeNotFound, "%s %v not found: `%s` shows those that you may see", what, id, list)
	}
	return protocol.Errorf(protocol.CodeNotFound, "%s %v not found", what, id)
}

// shownBy is the command that lists what a caller may see of a kind.
var shownBy = map[string]string{
	"session": "bivouac sessions", "turn": "bivouac turns", "attempt": "bivouac turns", "action": "bivouac turns",
	"approval": "bivouac approvals --all", "agent": "bivouac agents list", "principal": "bivouac principal list",
	"runner": "bivouac edge list", "binding": "bivouac edge list", "grant": "bivouac grant list --all",
}

// number scans one integer.
func number(r scanner) (n int64, err error) {
	err = r.Scan(&n)
	return n, err
}

// All as a limit asks for every row: a list that ends early would hide the rest for
// good from a tick that looks only once.
const All = -1

// limited keeps a page within bounds; zero is the largest page.
func limited(limit int) int {
	if limit == All {
		return math.MaxInt32
	}
	if limit <= 0 || limit > maxPage {
		return maxPage
	}
	return limit
}

// maxPage bounds a page of every list.
const maxPage = 1000

// newID makes an id of the transaction's instant.
func newID[I protocol.ID[K], K protocol.Kind](tx *Tx) I {
	return I(protocol.NewID[K](tx.Now, tx.store.entropy))
}

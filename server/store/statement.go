package store

import (
	"strings"
	"sync"
)

// statement is one SQL text, declared beside the function that runs it. Both
// engines read the same text: parameters are $1, $2, …, and {lock} locks the
// selected rows where the engine has row locks.
type statement struct {
	n    int // place in statements
	text string
}

// statements are all of them, so that each can be prepared on each engine.
var statements []*statement

// define declares a statement; only package-level variables call it.
func define(text string) *statement {
	st := &statement{n: len(statements), text: text}
	statements = append(statements, st)
	return st
}

// Fragments of visibility. $1 and $2 are the caller's tenant and own id, empty
// for internal callers; $3 is 1 for an admin. What they hide does not exist for
// the statement, so another's row and an absent one give the same answer. INV-9.

// own shows rows of the caller itself.
func own(alias string) string {
	return strings.ReplaceAll(`($1 = '' OR (@.tenant = $1 AND @.principal = $2))`, "@", alias)
}

// managed shows rows of the caller itself, and an admin those of its tenant.
func managed(alias string) string {
	return strings.ReplaceAll(`($1 = '' OR (@.tenant = $1 AND (@.principal = $2 OR $3 = 1)))`, "@", alias)
}

// held shows attempts of the caller, or on the calling runner.
func held(alias string) string {
	return strings.ReplaceAll(`($1 = '' OR (@.tenant = $1 AND (@.principal = $2 OR @.runner = $2)))`, "@", alias)
}

// reachable shows runners to themselves, to their owner, to principals bound to
// them, and to an admin of the tenant.
func reachable(alias string) string {
	return strings.ReplaceAll(`($1 = '' OR (@.tenant = $1 AND (@.id = $2 OR @.owner = $2 OR $3 = 1
		OR EXISTS (SELECT 1 FROM bindings bx WHERE bx.runner = @.id AND bx.principal = $2 AND bx.removed_at = 0))))`, "@", alias)
}

// stateIs compares a state with a parameter. Compared plainly, SQLite would weigh
// the parameter's value against the partial indexes over states, and so prepare
// the statement anew at every execution.
func stateIs(column, parameter string) string { return column + ` = ` + parameter + ` || ''` }

// activeStates is the condition of the partial index that holds INV-1.
const activeStates = `('RECEIVED', 'RUNNING_MODEL', 'WAITING_ACTION', 'WAITING_APPROVAL', 'RUNNING_ACTION', 'WAITING_RECONCILIATION')`

// openActions is the condition of the partial index over actions that have not
// ended.
const openActions = `('INTENDED', 'AWAITING_APPROVAL', 'DISPATCHED', 'RECONCILING')`

// heldStates are those of an attempt that has not ended.
const heldStates = `('QUEUED', 'OFFERED', 'CLAIMED', 'RUNNING', 'SUSPECT')`

// dialect is what differs between the two engines.
type dialect struct {
	name string
	// blob is the column type of bytes.
	blob string
	// lock ends a SELECT whose rows must not change until the commit.
	lock string
	// migrationLock is run first in the migrating transaction.
	migrationLock string
	// classify says what an engine's error means.
	classify func(error) failure

	once  sync.Once
	texts []string
}

// failure is what an engine's error means to the caller of Update.
type failure int

const (
	// failed: this statement was refused; the call fails.
	failed failure = iota
	// refused: a constraint held.
	refused
	// raced: another transaction won; the same call may succeed again.
	raced
	// spoiled: the engine may have taken back the whole transaction.
	spoiled
	// away: the connection was lost; before a commit, nothing was changed.
	away
	// slow: the database gave the transaction up.
	slow
	// readOnly: the database takes no writes.
	readOnly
	// crowded: it takes no more connections.
	crowded
	// altered: its tables are not those of this build.
	altered
	// barred: it refuses this server's role.
	barred
	// corrupt: the file is damaged.
	corrupt
)

// sql is the text of a statement for this engine.
func (d *dialect) sql(st *statement) string {
	d.once.Do(func() {
		d.texts = make([]string, len(statements))
		for i, st := range statements {
			d.texts[i] = d.expand(st.text)
		}
	})
	return d.texts[st.n]
}

// expand fills the tokens of a text.
func (d *dialect) expand(text string) string {
	return strings.NewReplacer("{blob}", d.blob, "{lock}", d.lock).Replace(text)
}

package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/planted"
	"bivouac/server/policy"
)

const cleanupColumns = `c.id, c.tenant, c.kind, c.subject, c.created_at, c.tries, c.next_at, c.done_at, c.evidence`

func scanCleanup(r scanner) (c policy.Cleanup, err error) {
	err = r.Scan(&c.ID, &c.Tenant, &c.Kind, &c.Subject, at(&c.CreatedAt), &c.Tries, at(&c.NextAt), at(&c.DoneAt), &c.Evidence)
	return c, err
}

var (
	insertCleanup = define(`INSERT INTO cleanups (id, tenant, kind, subject, created_at, tries, next_at, done_at, evidence)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`)
	cleanupsDue = define(`SELECT ` + cleanupColumns + ` FROM cleanups c WHERE c.done_at = 0 AND c.next_at <= $1
		ORDER BY c.next_at, c.id LIMIT $2`)
	cleanupByID  = define(`SELECT ` + cleanupColumns + ` FROM cleanups c WHERE c.id = $1`)
	cleanupsOpen = define(`SELECT COUNT(*) FROM cleanups c WHERE c.done_at = 0`)
	cleanupsPage = define(`SELECT ` + cleanupColumns + ` FROM cleanups c WHERE ($1 = '' OR (c.tenant = $1 AND $2 <> '' AND $3 = 1))
		AND c.done_at = 0 AND (c.created_at, c.id) > ($4, $5) ORDER BY c.created_at, c.id LIMIT $6`)
	saveCleanup = define(`UPDATE cleanups SET tries = $2, next_at = $3, done_at = $4, evidence = $5 WHERE id = $1 AND done_at = 0`)
)

// InsertCleanup asks for a cleanup in the transaction that ends what needs it. INV-18.
func (tx *Tx) InsertCleanup(c policy.Cleanup) error {
	if k := tx.caller; !k.Internal() && (k.kind != callerPrincipal || k.tenant != c.Tenant) {
		return protocol.Errorf(protocol.CodePermissionDenied, "%s cannot ask for a cleanup of another", k)
	}
	if planted.Chosen == planted.Cleanup && c.Kind == policy.CleanupSlice {
		return nil
	}
	n, err := tx.exec(insertCleanup, c.ID, c.Tenant, c.Kind, c.Subject, c.CreatedAt, c.Tries, c.NextAt, c.DoneAt, c.Evidence)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "cleanup %s exists already", c.ID)
	}
	tx.touch(TopicCleanups)
	return err
}

// CleanupsDue are open cleanups whose next try has come.
func (tx *Tx) CleanupsDue(limit int) ([]policy.Cleanup, error) {
	if err := tx.internal("cleaning up"); err != nil {
		return nil, err
	}
	return list(tx, scanCleanup, cleanupsDue, []any{tx.Now, limited(limit)})
}

// Cleanup is one of them, open or done, with its evidence.
func (tx *Tx) Cleanup(id protocol.CleanupID) (policy.Cleanup, error) {
	if err := tx.internal("cleaning up"); err != nil {
		return policy.Cleanup{}, err
	}
	return one(tx, "cleanup", id, scanCleanup, cleanupByID, []any{id})
}

// CleanupDebt counts what is not cleaned up yet. INV-18.
func (tx *Tx) CleanupDebt() (int, error) {
	if err := tx.internal("cleaning up"); err != nil {
		return 0, err
	}
	n, err := first(tx, number, cleanupsOpen, nil)
	return int(n), err
}

// Cleanups pages what is not cleaned up yet, oldest first: to admins of its
// tenant; cursor is opaque. INV-18.
func (tx *Tx) Cleanups(limit int, cursor string) ([]policy.Cleanup, string, error) {
	var from position // before the oldest
	if cursor != "" {
		var err error
		if from, err = readCursor(cursor); err != nil {
			return nil, "", err
		}
	}
	limit = limited(limit)
	page, err := list(tx, scanCleanup, cleanupsPage, tx.managing(from.at, from.id, limit))
	if err != nil || len(page) < limit {
		return page, "", err
	}
	last := page[len(page)-1]
	return page, position{at: micros(last.CreatedAt), id: last.ID.String()}.String(), nil
}

// SaveCleanup records a try; one that is done stays done.
func (tx *Tx) SaveCleanup(c policy.Cleanup) error {
	if err := tx.internal("cleaning up"); err != nil {
		return err
	}
	n, err := tx.exec(saveCleanup, c.ID, c.Tries, c.NextAt, c.DoneAt, c.Evidence)
	if err == nil && n == 0 {
		return absent("open cleanup", c.ID)
	}
	return err
}

package store

import "time"

var (
	dropUnused  = define(`DELETE FROM artifacts WHERE session = '' AND created_at < $1`)
	rowsOfBytes = define(`SELECT COUNT(*) FROM artifacts f WHERE f.digest = $1`)
)

// DropUnusedUploads forgets uploads older than an instant that no session used:
// one that a session uses has a row of its own.
func (tx *Tx) DropUnusedUploads(before time.Time) (int64, error) {
	if err := tx.internal("sweeping"); err != nil {
		return 0, err
	}
	return tx.exec(dropUnused, before)
}

// Unread are those of some digests that nobody may read any more: their bytes can go.
func (tx *Tx) Unread(digests []string) (out []string, err error) {
	if err := tx.internal("sweeping"); err != nil {
		return nil, err
	}
	for _, d := range digests {
		n, err := first(tx, number, rowsOfBytes, []any{d})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			out = append(out, d)
		}
	}
	return out, nil
}

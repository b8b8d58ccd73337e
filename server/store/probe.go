package store

import "context"

var probe = define(`INSERT INTO meta (name, value) VALUES ('probed_at', $1)
	ON CONFLICT (name) DO UPDATE SET value = excluded.value`)

// Probe commits one small write: only that shows that a turn could be admitted.
// A full disk, a read-only file and a stuck writer look well to every read.
func (s *Store) Probe(ctx context.Context) error {
	return s.Update(ctx, AsLoop("probe"), func(tx *Tx) error {
		_, err := tx.exec(probe, tx.Now)
		return err
	})
}

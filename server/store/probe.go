package store

import "context"

var probe = define(`INSERT INTO meta (name, value) VALUES ('probed_at', $1)
	ON CONFLICT (name) DO UPDATE SET value = excluded.value`)

// Probe commits one small write: only that shows that a turn could be admitted.
// A full disk, a read-only file and a stuck writer look well to every read. It
// does not wait longer than its caller: its outcome matters to nobody.
func (s *Store) Probe(ctx context.Context) error {
	return s.engine.probe(ctx, AsLoop("probe"), func(tx *Tx) error {
		_, err := tx.exec(probe, tx.Now)
		return err
	})
}

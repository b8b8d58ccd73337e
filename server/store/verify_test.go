package store

import (
	"testing"

	"bivouac/edge/protocol"
)

// What somebody changes behind the store's back is seen, each table in turn. INV-8.
func TestVerifyEventsSeesChangedRows(t *testing.T) {
	for name, change := range map[string]string{
		"a payload":         `UPDATE event_payloads SET payload = 'other' WHERE seq = 2`,
		"a salt":            `UPDATE event_payloads SET salt = x'00' WHERE seq = 2`,
		"a payload gone":    `DELETE FROM event_payloads WHERE seq = 2`,
		"bytes":             `UPDATE events SET bytes = (SELECT bytes FROM events WHERE seq = 1) WHERE seq = 2`,
		"a hash":            `UPDATE events SET hash = x'00' WHERE seq = 2`,
		"the last one gone": `DELETE FROM events WHERE seq = 3`,
		"the session's end": `UPDATE sessions SET last_hash = x'00'`,
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir())
			id, err := conversation(s, "red")
			if err != nil {
				t.Fatal(err)
			}
			verify := func() error {
				return s.View(t.Context(), loop, func(tx *Tx) error { return tx.VerifyEvents(id) })
			}
			for _, text := range []string{"one", "two", ""} {
				if err := s.Update(t.Context(), loop, func(tx *Tx) error { return say(tx, id, text) }); err != nil {
					t.Fatal(err)
				}
			}
			if err := verify(); err != nil {
				t.Fatal(err)
			}
			err = s.sqlite().migrating(t.Context(), func(on plainSQL) error {
				_, err := on.ExecContext(t.Context(), change)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := verify(); protocol.CodeOf(err) != protocol.CodeDataLoss {
				t.Errorf("after %q: %v", change, err)
			}
		})
	}
}

package store

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

// beforeOwners is the schema that migration 15 finds, with what later ones find.
var beforeOwners = []string{
	`DROP INDEX turns_owned`,
	`ALTER TABLE turns ADD COLUMN owner_expires_at BIGINT NOT NULL DEFAULT 1700000000000000`,
	`CREATE INDEX turns_owned ON turns (owner, owner_expires_at) WHERE state IN ` + activeStates,
	`ALTER TABLE grants DROP COLUMN revoked_why`,
	`ALTER TABLE grants DROP COLUMN receipt`,
	`ALTER TABLE grants DROP COLUMN rotation`,
	`ALTER TABLE grants DROP COLUMN rotation_at`,
	`DROP INDEX grants_rotated_at`,
	`ALTER TABLE grants DROP COLUMN rotated_at`,
	`ALTER TABLE grants DROP COLUMN rotation_receipt`,
	`ALTER TABLE grants DROP COLUMN proof`,
	`ALTER TABLE grants DROP COLUMN proven_at`,
	`DROP INDEX runners_workload`,
	`ALTER TABLE runners DROP COLUMN workload`,
	`DROP INDEX attempts_allocated`,
	`ALTER TABLE attempts DROP COLUMN allocation`,
	`ALTER TABLE attempts DROP COLUMN allocations`,
	`ALTER TABLE attempts DROP COLUMN allocation_asked_at`,
	`DROP INDEX sessions_queued`,
	`ALTER TABLE sessions DROP COLUMN queued`,
	`CREATE INDEX turns_queued_by_principal ON turns (tenant, principal) WHERE state = 'QUEUED'`,
	`DELETE FROM schema_migrations WHERE version >= 15`,
}

// A database of an earlier version comes forward with the turns that run in it,
// which are their owner's still, and with those that wait; the next start finds
// nothing to do.
func TestTurnsComeForward(t *testing.T) {
	dir, replica := t.TempDir(), protocol.ReplicaID("rep_of_the_owner")
	s, err := Open(context.Background(), Config{Path: filepath.Join(dir, "bivouac.db")})
	if err != nil {
		t.Fatal(err)
	}
	id, err := conversation(s, "tenant")
	if err != nil {
		t.Fatal(err)
	}
	var before session.Turn
	err = s.Update(context.Background(), loop, func(tx *Tx) error {
		turn, err := tx.InsertTurn(session.Turn{ID: newID[protocol.TurnID](tx), Session: id, State: session.Queued, QueuedAt: tx.Now,
			MessageID: "1", Prompt: "What is in my notes?"})
		if err != nil {
			return err
		}
		turn.State, turn.Owner, turn.OwnerFence, turn.Loop = session.Received, replica, 7, []byte("loop")
		if err := tx.SaveTurn(turn, session.Queued, 0); err != nil {
			return err
		}
		for _, message := range []string{"2", "3"} {
			if _, err := tx.InsertTurn(session.Turn{ID: newID[protocol.TurnID](tx), Session: id, State: session.Queued, QueuedAt: tx.Now,
				MessageID: message, Prompt: "And now?"}); err != nil {
				return err
			}
		}
		before, err = tx.Turn(turn.ID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	change(t, dir, beforeOwners...)
	for range 2 {
		s := openAt(t, dir)
		err := s.View(context.Background(), loop, func(tx *Tx) error {
			owned, err := tx.OwnedTurns(replica)
			if err != nil {
				return err
			}
			if len(owned) != 1 || owned[0].ID != before.ID || owned[0].OwnerFence != 7 || string(owned[0].Loop) != "loop" || owned[0].Prompt != before.Prompt {
				t.Errorf("its owner finds %+v, want %+v", owned, before)
			}
			s, err := tx.Session(id)
			if s.Queued != 2 {
				t.Errorf("%d turns wait, want 2", s.Queued)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	change(t, dir, beforeOwners[:2]...) // refused where the column still is
}

// change a database file that nothing has open.
func change(t *testing.T, dir string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "bivouac.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(text, err)
		}
	}
}

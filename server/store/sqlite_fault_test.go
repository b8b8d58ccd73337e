package store

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"bivouac/edge/protocol"
)

// filled makes a database with some conversations and closes it.
func filled(t *testing.T, dir string) (path string, id protocol.SessionID) {
	t.Helper()
	path = filepath.Join(dir, "bivouac.db")
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if id, err = conversation(s, "red"); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "a line of some length, so that there are pages") }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path, id
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// usable opens a file, holds it to its chains, and closes it.
func usable(t *testing.T, path string, id protocol.SessionID) error {
	t.Helper()
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.View(t.Context(), loop, func(tx *Tx) error { return tx.VerifyEvents(id) })
}

// A file that was cut off is refused, wherever it was cut; its whole twin is not.
func TestTruncatedDatabaseIsRefused(t *testing.T) {
	path, id := filled(t, t.TempDir())
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 50, 4096, st.Size() / 2, st.Size() - 4096, st.Size() - 100} {
		cut := filepath.Join(t.TempDir(), "bivouac.db")
		copyFile(t, path, cut)
		if err := os.Truncate(cut, size); err != nil {
			t.Fatal(err)
		}
		if err := usable(t, cut, id); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("cut to %d of %d bytes: %v", size, st.Size(), err)
		}
	}
	if err := usable(t, path, id); err != nil {
		t.Errorf("the whole one: %v", err)
	}
}

// A copy of a closed database is one; a copy of one that a server has open is
// refused with what to do, or it is consistent. Never does it open and lie. INV-8.
func TestDatabaseCopiedWhileItRuns(t *testing.T) {
	dir := t.TempDir()
	path, id := filled(t, dir)
	closed := filepath.Join(t.TempDir(), "bivouac.db")
	copyFile(t, path, closed)
	if err := usable(t, closed, id); err != nil {
		t.Errorf("a copy of a closed one: %v", err)
	}

	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for !over.Load() {
				if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "while it is copied") }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	refusals := 0
	for i := range 12 {
		at := filepath.Join(t.TempDir(), "bivouac.db")
		copyFile(t, path, at)
		if i%2 == 0 {
			copyFile(t, path+"-wal", at+"-wal")
		}
		err := usable(t, at, id)
		if code := protocol.CodeOf(err); err != nil && code != protocol.CodeDataLoss && code != protocol.CodeFailedPrecondition {
			t.Errorf("copy %d: %v", i, err)
		} else if err != nil {
			refusals++
		}
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			continue
		}
		// What the refusal names makes it usable, and void what it gave out.
		raised, err := Raise(t.Context(), Config{Path: at})
		if err != nil {
			t.Errorf("copy %d, in place: %v", i, err)
			continue
		}
		if raised.Epoch() <= s.Epoch() {
			t.Errorf("epoch %d after %d", raised.Epoch(), s.Epoch())
		}
		raised.Close()
		if err := usable(t, at, id); err != nil {
			t.Errorf("copy %d, afterwards: %v", i, err)
		}
	}
	over.Store(true)
	work.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if refusals == 0 {
		t.Error("no copy was refused: the test proves nothing")
	}
	if err := usable(t, path, id); err != nil {
		t.Errorf("the one that was copied: %v", err)
	}
}

// A process that was killed left its file where it is: that is no copy.
func TestKilledProcessLeavesNoCopy(t *testing.T) {
	dir := t.TempDir()
	path, id := filled(t, dir)
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	s.sqlite().adopted = false // it does not say that it closes, as if it were killed
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := usable(t, path, id); err != nil {
		t.Errorf("after a kill: %v", err)
	}
}

// Every table is in a copy or has a reason not to be.
func TestCopiesHoldEveryTable(t *testing.T) {
	stays := []string{"schema_migrations", "legal_steps", // made by migrations
		"connections", "mailbox", "replicas", "leads", "signing_statements"} // of the running deployment
	s := openAt(t, t.TempDir())
	rows, err := s.sqlite().readers.QueryContext(t.Context(), `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var there []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		there = append(there, name)
		if slices.Contains(Tables, name) == slices.Contains(stays, name) {
			t.Errorf("table %s: say whether a backup holds it, in Tables", name)
		}
	}
	for _, name := range Tables {
		if !slices.Contains(there, name) {
			t.Errorf("table %s is not there", name)
		}
	}
}

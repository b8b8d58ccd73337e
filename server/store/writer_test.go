package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// batchOf runs calls of which all wait while the first is inside, so that they
// share a transaction, and returns how many commits it took.
func batchOf(s *Store, first func(*Tx) error, rest ...func()) (commits int64) {
	w := s.sqlite().writer
	before := w.commits.Load()
	inside, release := make(chan struct{}), make(chan struct{})
	go s.Update(context.Background(), loop, func(tx *Tx) error {
		select {
		case <-inside: // running again, by itself
		default:
			close(inside)
			<-release
		}
		return first(tx)
	})
	<-inside
	for _, call := range rest {
		go call()
		synctest.Wait() // it waits in the queue
	}
	close(release)
	synctest.Wait()
	return w.commits.Load() - before
}

// A call that fails, panics or ends its goroutine takes nothing from the others
// that share its COMMIT.
func TestBatchIsolatesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, t.TempDir())
		id, err := conversation(s, "red")
		if err != nil {
			t.Fatal(err)
		}
		refusal := errors.New("no")
		var results [4]error
		var recovered any
		update := func(i int, fn func(*Tx) error) func() {
			return func() { results[i] = s.Update(context.Background(), loop, fn) }
		}
		commits := batchOf(s, func(tx *Tx) error { return say(tx, id, "first") },
			update(0, func(tx *Tx) error { return errors.Join(say(tx, id, "refused"), refusal) }),
			update(1, func(tx *Tx) error { return say(tx, id, "second") }),
			func() {
				defer func() { recovered = recover() }()
				update(2, func(tx *Tx) error { say(tx, id, "panicked"); panic("bug") })()
			},
			update(3, func(tx *Tx) error { return say(tx, id, "third") }))
		if commits != 1 {
			t.Errorf("%d commits for one batch", commits)
		}
		if !errors.Is(results[0], refusal) || results[1] != nil || results[3] != nil || recovered != "bug" {
			t.Errorf("results %v, recovered %v", results, recovered)
		}
		if got := said(t, s, id); !slices.Equal(got, []string{"first", "second", "third"}) {
			t.Errorf("committed %q", got)
		}
	})
}

// A caller that gives up before its turn withdraws; the transaction that others
// share goes on.
func TestCancelledCallerWithdraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, t.TempDir())
		id, err := conversation(s, "red")
		if err != nil {
			t.Fatal(err)
		}
		reason := errors.New("gone home")
		var gaveUp, other error
		ctx, cancel := context.WithCancelCause(context.Background())
		ran := false
		batchOf(s, func(tx *Tx) error { return say(tx, id, "first") },
			func() { gaveUp = s.Update(ctx, loop, func(tx *Tx) error { ran = true; return say(tx, id, "late") }) },
			func() {
				other = s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "second") })
			},
			func() { cancel(reason) })
		if !errors.Is(gaveUp, reason) || other != nil || ran {
			t.Errorf("gave up %v, other %v, ran %v", gaveUp, other, ran)
		}
		if got := said(t, s, id); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("committed %q", got)
		}
	})
}

// SQLITE_FULL may take back the whole batch: every call runs again by itself, so
// that only the one that does not fit fails.
func TestFullDatabaseFailsOnlyWhatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, t.TempDir())
		id, err := conversation(s, "red")
		if err != nil {
			t.Fatal(err)
		}
		limit := func(pragma string) {
			if err := s.sqlite().migrating(t.Context(), func(on plainSQL) error {
				_, err := on.ExecContext(t.Context(), pragma)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		pages := s.pages(t)
		limit(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+20))
		big := strings.Repeat("x", 1<<20)
		var tooBig, swallowed, fits error
		commits := batchOf(s, func(tx *Tx) error { return say(tx, id, "first") },
			func() { tooBig = s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, big) }) },
			func() {
				swallowed = s.Update(context.Background(), loop, func(tx *Tx) error { _ = say(tx, id, big); return nil })
			},
			func() { fits = s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "fits") }) })
		if commits < 2 {
			t.Errorf("%d commits: the batch was not taken apart", commits)
		}
		for what, err := range map[string]error{"too big": tooBig, "too big, passed over": swallowed} {
			if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "free disk space") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if fits != nil {
			t.Errorf("what fits: %v", fits)
		}
		if got := said(t, s, id); !slices.Equal(got, []string{"first", "fits"}) {
			t.Errorf("committed %d events", len(got))
		}
		limit(`PRAGMA max_page_count = 1000000`)
		if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, big) }); err != nil {
			t.Errorf("with space again: %v", err)
		}
	})
}

func (s *Store) pages(t *testing.T) (n int) {
	t.Helper()
	if err := s.sqlite().readers.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Inside a bubble time is virtual, and the store keeps to it.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, t.TempDir())
		var began, later time.Time
		now := func(into *time.Time) {
			if err := s.Update(context.Background(), loop, func(tx *Tx) error { *into = tx.Now; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		now(&began)
		time.Sleep(2 * time.Hour)
		now(&later)
		if got := later.Sub(began); got != 2*time.Hour {
			t.Errorf("two hours took %v", got)
		}
	})
}

func TestClosedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := openAt(t, dir)
		id, err := conversation(s, "red")
		if err != nil {
			t.Fatal(err)
		}
		var running, closed error
		batchOf(s, func(tx *Tx) error { return say(tx, id, "first") },
			func() {
				running = s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "second") })
			},
			func() { closed = s.Close() })
		if closed != nil {
			t.Fatal(closed)
		}
		if err := s.Update(context.Background(), loop, func(*Tx) error { return nil }); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("an Update after Close: %v", err)
		}
		if err := s.View(context.Background(), loop, func(*Tx) error { return nil }); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("a View after Close: %v", err)
		}
		// The call that waited was either committed or told so, never in between.
		again := openAt(t, dir)
		want := []string{"first", "second"}
		if running != nil {
			want = want[:1]
		}
		if got := said(t, again, id); !slices.Equal(got, want) {
			t.Errorf("committed %q, and the second answered %v", got, running)
		}
	})
}

package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"bivouac/server/policy"
	"bivouac/server/store"
	"bivouac/server/store/storetest"
)

// pair opens two stores on one database, as two servers do.
func pair(t *testing.T) (a, b *store.Store, dsn string) {
	t.Helper()
	dsn = storetest.PostgresDSN(t)
	open := func() *store.Store {
		s, err := store.Open(t.Context(), store.Config{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	return open(), open(), dsn
}

// woken waits for a wake-up, far longer than any hint takes.
func woken(t *testing.T, what string, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
	case <-time.After(30 * time.Second):
		t.Errorf("%s: nobody was woken", what)
	}
}

func floor(t *testing.T, s *store.Store, id string) {
	t.Helper()
	err := s.Update(context.Background(), racing, func(tx *store.Tx) error {
		_, err := tx.AddFloor(policy.Floor{Kind: policy.FloorGrant, ID: id, Minimum: 1})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A commit of one server wakes the other's readers; a listener whose connection
// is lost listens again, and looks once at what it may have missed.
func TestPostgresHintsReachTheOtherServer(t *testing.T) {
	a, b, dsn := pair(t)
	wake, stop := b.Subscribe(store.TopicFloors)
	defer stop()
	floor(t, a, "one")
	woken(t, "after a commit elsewhere", wake)

	// Hints are hints: what nobody is told of is read all the same.
	var found []policy.Floor
	err := b.View(t.Context(), racing, func(tx *store.Tx) (err error) {
		found, _, err = tx.Floors(0, 0)
		return err
	})
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}

	admin, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for listening := 0; listening < 2; { // both, by now or soon
		if err := admin.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()`).Scan(&listening); err != nil {
			t.Fatal(err)
		}
	}
	drain(wake)
	var ended int
	err = admin.QueryRowContext(t.Context(), `SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()`).Scan(&ended)
	if err != nil || ended < 2 {
		t.Fatalf("%d listeners ended: %v", ended, err)
	}
	woken(t, "after listening anew", wake)
	for i := range 300 { // until the new LISTEN of b is heard by a's own new connection too
		drain(wake)
		floor(t, a, fmt.Sprint("again ", i))
		select {
		case <-wake:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Error("no hint comes after the connection was lost")
}

func drain(c <-chan struct{}) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

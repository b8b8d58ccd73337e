package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/store"
	"bivouac/server/store/storetest"
)

// race is one counter that transactions fight over.
type race struct {
	store   *store.Store
	counter protocol.InstanceID
}

var racing = store.AsLoop("race")

func newRace(t *testing.T, s *store.Store) race {
	t.Helper()
	r := race{store: s}
	err := s.Update(t.Context(), racing, func(tx *store.Tx) error {
		ten, err := tx.EnsureTenant("race")
		if err != nil {
			return err
		}
		p := policy.Principal{ID: "prn_01jdv3k8x0q6v9w2m4t7y5z1ab", Tenant: ten.ID, Name: "racer"}
		if err := tx.InsertPrincipal(p); err != nil {
			return err
		}
		i, err := tx.EnsureInstance(ten.ID, p.ID, "assistant")
		r.counter = i.ID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r race) raise(tx *store.Tx) (int64, error) {
	i, err := tx.RaiseGeneration(r.counter)
	return i.Generation, err
}

// outrun raises the counter after another transaction has raised it meanwhile,
// in the first n runs: each of them loses its race for certain.
func (r race) outrun(ctx context.Context, n int) (runs int, counted int64, err error) {
	err = r.store.Update(ctx, racing, func(tx *store.Tx) (err error) {
		if _, err := tx.Principals(); err != nil { // fixes what this run sees
			return err
		}
		runs++
		if runs <= n {
			if err := r.store.Update(context.Background(), racing, func(tx *store.Tx) error {
				_, err := r.raise(tx)
				return err
			}); err != nil {
				return err
			}
		}
		counted, err = r.raise(tx)
		return err
	})
	return runs, counted, err
}

// An Update that loses its race runs again for as long as its caller waits, not
// only a handful of times: under load one transaction may lose often.
func TestPostgresRunsAgainWhileTheCallerWaits(t *testing.T) {
	s := storetest.Postgres(t)
	t.Cleanup(func() { s.Close() })
	r := newRace(t, s)
	const losses = 25
	runs, counted, err := r.outrun(t.Context(), losses)
	if err != nil || runs != losses+1 || counted != losses+2 {
		t.Errorf("after %d runs the counter is %d, want %d after %d: %v", runs, counted, losses+2, losses+1, err)
	}

	// Its positive twin is above: one that never wins ends with its caller's wait,
	// is told so, and has changed nothing.
	lost := 0
	runs = 0
	for wait := 300 * time.Millisecond; runs < 2 && wait < time.Minute; wait *= 4 { // a busy machine needs longer for two
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		runs, _, err = r.outrun(ctx, 1<<30)
		cancel()
		lost += runs
	}
	if !errors.Is(err, context.DeadlineExceeded) || runs < 2 {
		t.Errorf("past its deadline, after %d runs: %v", runs, err)
	}
	_, after, err := r.outrun(t.Context(), 0)
	if want := counted + int64(lost) + 1; err != nil || after != want {
		t.Errorf("the counter is %d, want %d: %v", after, want, err)
	}
}

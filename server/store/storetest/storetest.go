// Package storetest is what a store must do on every engine: visibility, guards,
// constraints, the event chain, and every column there and back. A suite that
// passes on SQLite alone has not passed.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Run tests stores that open makes; each call gives a new, empty one, which the
// test closes.
func Run(t *testing.T, open func(t *testing.T) *store.Store) {
	for _, part := range []struct {
		name string
		test func(*testing.T, *store.Store)
	}{
		{"statements", statements},
		{"visibility", visibility},
		{"columns", columns},
		{"transactions", transactions},
		{"concurrency", concurrency},
		{"sessions", sessions},
		{"queue", queue},
		{"guards", guards},
		{"steps", steps},
		{"actions", actions},
		{"approvals", approvals},
		{"claims", claims},
		{"records", records},
		{"events", events},
		{"erasure", erasure},
		{"ledger", ledger},
		{"projection", projection},
		{"principals", principals},
		{"agents", agents},
		{"runners", runners},
		{"workloads", workloads},
		{"connections", connections},
		{"replicas", replicas},
		{"lead", lead},
		{"statements of keys", signing},
		{"mail", mail},
		{"join codes", joinCodes},
		{"grants", grants},
		{"floors", floors},
		{"rotations", rotations},
		{"slices", slicesOfBudget},
		{"cleanups", cleanups},
		{"artifacts", artifacts},
	} {
		t.Run(part.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			part.test(t, s)
		})
	}
}

// statements proves that code and schema agree, on this engine.
func statements(t *testing.T, s *store.Store) {
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Epoch() != 1 {
		t.Errorf("a new store has epoch %d", s.Epoch())
	}
}

// loop is the engine, which sees everything.
var loop = store.AsLoop("storetest")

// id makes an identifier.
func id[I protocol.ID[K], K protocol.Kind]() I {
	return I(protocol.NewID[K](time.Now(), rand.Reader))
}

// update fails the test when the transaction fails.
func update(t *testing.T, s *store.Store, c store.Caller, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), c, fn); err != nil {
		t.Fatal(err)
	}
}

// view fails the test when the transaction fails.
func view(t *testing.T, s *store.Store, c store.Caller, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := s.View(context.Background(), c, fn); err != nil {
		t.Fatal(err)
	}
}

// attempt runs a transaction for its error.
func attempt(s *store.Store, fn func(tx *store.Tx) error) error {
	return s.Update(context.Background(), loop, fn)
}

var errUndo = errors.New("storetest: undo")

// undone runs fn and takes back what it did.
func undone(t *testing.T, s *store.Store, c store.Caller, fn func(tx *store.Tx)) {
	t.Helper()
	if err := s.Update(context.Background(), c, func(tx *store.Tx) error { fn(tx); return errUndo }); !errors.Is(err, errUndo) {
		t.Fatalf("undo: %v", err)
	}
}

// wantCode fails unless err has the code.
func wantCode(t *testing.T, what string, err error, code protocol.Code) {
	t.Helper()
	if protocol.CodeOf(err) != code {
		t.Errorf("%s: %v (code %q), want code %q", what, err, protocol.CodeOf(err), code)
	}
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

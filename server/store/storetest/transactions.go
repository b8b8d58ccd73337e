package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// transactions: all or nothing, one state a view, wake-ups after the commit.
func transactions(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	t.Run("an error takes everything back", func(t *testing.T) {
		reason := errors.New("no")
		var made protocol.TenantID
		err := attempt(s, func(tx *store.Tx) error {
			ten, err := tx.EnsureTenant("gone")
			made = ten.ID
			return errors.Join(err, reason)
		})
		if !errors.Is(err, reason) {
			t.Fatal(err)
		}
		update(t, s, loop, func(tx *store.Tx) error {
			ten, err := tx.EnsureTenant("gone")
			if ten.ID == made {
				t.Error("the tenant of the failed transaction is there")
			}
			return err
		})
	})
	t.Run("a look-up asks once", func(t *testing.T) {
		again := false
		ask := func(tx *store.Tx) error {
			p, err := tx.Principal(x.User)
			if err != nil || p.ID != x.User {
				return fmt.Errorf("found %s: %w", p.ID, err)
			}
			if again {
				_, err = tx.Principal(x.User)
			}
			return err
		}
		if err := s.Lookup(t.Context(), loop, ask); err != nil {
			t.Error(err)
		}
		again = true
		if err := s.Lookup(t.Context(), loop, ask); err == nil {
			t.Error("a second statement is answered, of another moment perhaps")
		}
		if err := s.View(t.Context(), loop, ask); err != nil {
			t.Error("a view refuses a second statement:", err)
		}
	})
	t.Run("a refusal passed over fails the call", func(t *testing.T) {
		err := attempt(s, func(tx *store.Tx) error {
			if _, err := tx.EnsureTenant("half"); err != nil {
				return err
			}
			// A principal of a tenant that is not there: the database refuses.
			_ = tx.InsertPrincipal(policy.Principal{ID: id[protocol.PrincipalID](), Tenant: id[protocol.TenantID](), Name: "x"})
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "constraint") {
			t.Errorf("the call answered %v", err)
		}
		view(t, s, loop, func(tx *store.Tx) error {
			all, err := tx.Principals()
			for _, p := range all {
				if p.Name == "x" {
					t.Error("a half-done call was committed")
				}
			}
			return err
		})
	})
	t.Run("a view sees one state", func(t *testing.T) { oneState(t, s, x) })
	t.Run("a view does not write", func(t *testing.T) {
		err := s.View(t.Context(), loop, func(tx *store.Tx) error { return tx.AckMail(x.Runner, 0) })
		if err == nil || !strings.Contains(err.Error(), "View") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a transaction ends with its function", func(t *testing.T) {
		var kept []*store.Tx
		keep := func(tx *store.Tx) error { kept = append(kept, tx); return nil }
		view(t, s, loop, keep)
		update(t, s, loop, keep)
		for _, tx := range kept {
			if _, err := tx.Session(x.Session); err == nil {
				t.Error("it still answers")
			}
		}
	})
	t.Run("nobody", func(t *testing.T) {
		for _, c := range []store.Caller{{}, store.AsPrincipal("", x.User, true), store.AsPrincipal(x.Tenant, "", true),
			store.AsRunner("", x.Runner), store.AsRunner(x.Tenant, ""), store.AsLoop(""), store.AsOperator("")} {
			for _, run := range []func(context.Context, store.Caller, func(*store.Tx) error) error{s.View, s.Update} {
				if err := run(t.Context(), c, func(*store.Tx) error { t.Error("it ran"); return nil }); err == nil {
					t.Errorf("%v has a transaction", c)
				}
			}
		}
	})
	t.Run("wake-ups come after the commit", func(t *testing.T) { wakeUps(t, s, x) })
	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("gone home")
		cancel(reason)
		for _, run := range []func(context.Context, store.Caller, func(*store.Tx) error) error{s.View, s.Update} {
			if err := run(ctx, loop, func(*store.Tx) error { t.Error("it ran"); return nil }); !errors.Is(err, reason) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("a commit is never reported as cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.Update(ctx, loop, func(tx *store.Tx) error {
			cancel()
			_, err := tx.EnsureTenant("stays")
			return err
		}); err != nil {
			t.Fatalf("cancelled in the middle: %v", err)
		}
	})
	t.Run("text is the same on every engine", func(t *testing.T) {
		update(t, s, loop, func(tx *store.Tx) error {
			turn, err := tx.InsertTurn(session.Turn{ID: id[protocol.TurnID](), Session: x.Old, MessageID: "m", Prompt: "a\x00b\xffc",
				State: session.Queued, QueuedAt: tx.Now})
			if err != nil {
				return err
			}
			if turn, err = tx.Turn(turn.ID); turn.Prompt != "a\uFFFDb\uFFFDc" {
				t.Errorf("read %q", turn.Prompt)
			}
			return err
		})
	})
}

func oneState(t *testing.T, s *store.Store, x *side) {
	view(t, s, loop, func(tx *store.Tx) error {
		before, err := tx.Session(x.Session)
		if err != nil {
			return err
		}
		// Another transaction commits meanwhile, and this one does not see it.
		update(t, s, loop, func(tx *store.Tx) error {
			_, err := tx.AppendEvents(x.Session, session.Event{Type: session.CancelRequested})
			return err
		})
		after, err := tx.Session(x.Session)
		if after.LastSeq != before.LastSeq {
			t.Errorf("the session moved from %d to %d within one view", before.LastSeq, after.LastSeq)
		}
		return err
	})
}

func wakeUps(t *testing.T, s *store.Store, x *side) {
	wake, stop := s.Subscribe(store.EventsOf(x.Session))
	every, stopEvery := s.Subscribe(store.TopicEvents)
	defer stopEvery()
	other, stopOther := s.Subscribe(store.EventsOf(protocol.SessionID("ses_another")))
	defer stopOther()
	floors, stopFloors := s.Subscribe(store.TopicFloors)
	defer stopFloors()
	pending := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	appendOne := func(tx *store.Tx) error {
		_, err := tx.AppendEvents(x.Session, session.Event{Type: session.CancelRequested})
		if pending(wake) {
			t.Error("a wake-up before the commit")
		}
		return err
	}
	undone(t, s, loop, func(tx *store.Tx) {
		if err := appendOne(tx); err != nil {
			t.Error(err)
		}
	})
	if pending(wake) {
		t.Error("a wake-up without a commit")
	}
	for range 3 {
		update(t, s, loop, appendOne)
		<-wake
		<-every
		if pending(other) {
			t.Error("a session's event woke the stream of another")
		}
	}
	for range 3 {
		update(t, s, loop, func(tx *store.Tx) error {
			_, err := tx.AppendEvents(x.Session, session.Event{Type: session.CancelRequested})
			return err
		})
	}
	if !pending(wake) || pending(wake) {
		t.Error("a channel holds one wake-up, not none and not three")
	}
	if pending(floors) {
		t.Error("another topic was woken")
	}
	stop()
	update(t, s, loop, appendOne)
	if pending(wake) {
		t.Error("a wake-up after stop")
	}
}

// concurrency: what many callers do at once is what they do one by one.
func concurrency(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	const callers, each = 8, 12
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			for i := range each {
				err := attempt(s, func(tx *store.Tx) error {
					if _, err := tx.RaiseGeneration(x.Instance); err != nil {
						return err
					}
					_, err := tx.InsertTurn(session.Turn{ID: id[protocol.TurnID](), Session: x.Session, State: session.Queued,
						MessageID: fmt.Sprintf("%d/%d", c, i), QueuedAt: tx.Now})
					if err != nil {
						return err
					}
					_, err = tx.AppendEvents(x.Session, session.Event{Type: session.TurnQueued, Payload: fmt.Sprint(c, i)})
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	view(t, s, loop, func(tx *store.Tx) error {
		if err := tx.VerifyEvents(x.Session); err != nil { // INV-8
			t.Error(err)
		}
		depth, err := tx.QueueDepth("", "", x.Session)
		if want := callers*each + 1; depth != want {
			t.Errorf("%d turns wait, want %d", depth, want)
		}
		ses, err2 := tx.Session(x.Session)
		if want := int64(callers*each + 2); ses.LastSeq != want {
			t.Errorf("%d events, want %d", ses.LastSeq, want)
		}
		return errors.Join(err, err2)
	})
	update(t, s, loop, func(tx *store.Tx) error {
		i, err := tx.RaiseGeneration(x.Instance)
		if want := int64(callers*each + 2); i.Generation != want {
			t.Errorf("generation %d, want %d: an update was lost", i.Generation, want)
		}
		return err
	})
}

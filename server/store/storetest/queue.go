package storetest

import (
	"fmt"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

func sessions(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	t.Run("the key is unique per principal", func(t *testing.T) {
		update(t, s, loop, func(tx *store.Tx) error {
			wantCode(t, "the same key again", x.newSession(tx, id[protocol.SessionID](), "key of red", time.Time{}), protocol.CodeAlreadyExists)
			return nil
		})
		update(t, s, loop, func(tx *store.Tx) error {
			return x.newSession(tx, id[protocol.SessionID](), "another key", time.Time{})
		})
	})
	t.Run("pages", func(t *testing.T) {
		update(t, s, loop, func(tx *store.Tx) error {
			for range 7 {
				if err := x.newSession(tx, id[protocol.SessionID](), "", time.Time{}); err != nil {
					return err
				}
			}
			return nil
		})
		for _, c := range []store.Caller{x.user(), loop} {
			var all []session.Session
			view(t, s, c, func(tx *store.Tx) error {
				cursor := ""
				for {
					page, next, err := tx.Sessions(3, cursor)
					if err != nil {
						return err
					}
					all = append(all, page...)
					if cursor = next; cursor == "" {
						return nil
					}
				}
			})
			seen := map[protocol.SessionID]bool{}
			for i, ses := range all {
				if seen[ses.ID] {
					t.Errorf("%v: session %s twice", c, ses.ID)
				}
				seen[ses.ID] = true
				if i > 0 && all[i-1].CreatedAt.Before(ses.CreatedAt) {
					t.Errorf("%v: not newest first", c)
				}
			}
			if len(all) != 11 {
				t.Errorf("%v: %d sessions, want 11", c, len(all))
			}
		}
	})
	t.Run("a cursor of another make", func(t *testing.T) {
		for _, bad := range []string{"x", "!!!", "eA"} {
			err := s.View(t.Context(), loop, func(tx *store.Tx) error { _, _, err := tx.Sessions(3, bad); return err })
			wantCode(t, bad, err, protocol.CodeInvalidArgument)
		}
	})
	t.Run("idle ones expire", func(t *testing.T) {
		idle := id[protocol.SessionID]()
		update(t, s, loop, func(tx *store.Tx) error {
			return tx.InsertSession(session.Session{ID: idle, Tenant: x.Tenant, Principal: x.User, Instance: x.Instance, State: session.Open,
				LastActiveAt: tx.Now.Add(-time.Hour), IdleTTL: time.Minute})
		})
		due := func() (found bool) {
			view(t, s, loop, func(tx *store.Tx) error {
				all, err := tx.SessionsPastExpiry(0)
				for _, ses := range all {
					if !ses.Due(tx.Now) {
						t.Errorf("session %s is listed and not due", ses.ID)
					}
					found = found || ses.ID == idle
				}
				return err
			})
			return found
		}
		if !due() {
			t.Error("an idle session is not listed")
		}
		update(t, s, loop, func(tx *store.Tx) error {
			ses, err := tx.Session(idle)
			if err != nil {
				return err
			}
			ses.LastActiveAt = tx.Now
			return tx.SaveSession(ses, session.Open)
		})
		if due() {
			t.Error("an active session is listed")
		}
	})
}

// queue: order, one active turn, one turn a message. INV-1, INV-15.
func queue(t *testing.T, s *store.Store) {
	x, y := build(t, s, "red"), build(t, s, "blue")
	ses := id[protocol.SessionID]()
	var turns []session.Turn
	update(t, s, loop, func(tx *store.Tx) error {
		if err := x.newSession(tx, ses, "", time.Time{}); err != nil {
			return err
		}
		turns = nil
		for i := range 3 {
			turn, err := x.newTurn(tx, ses, id[protocol.TurnID]())
			if err != nil {
				return err
			}
			if turn.N != int64(i+1) || turn.Principal != x.User || turn.Tenant != x.Tenant {
				t.Errorf("turn %d: %+v", i+1, turn)
			}
			turns = append(turns, turn)
		}
		return nil
	})
	step := func(turn session.Turn, states ...session.TurnState) error {
		return attempt(s, func(tx *store.Tx) error {
			turn, err := tx.Turn(turn.ID)
			if err != nil {
				return err
			}
			_, err = walk(tx, turn, states...)
			return err
		})
	}
	t.Run("a duplicate message", func(t *testing.T) { // INV-15
		err := attempt(s, func(tx *store.Tx) error {
			_, err := tx.InsertTurn(session.Turn{ID: id[protocol.TurnID](), Session: ses, MessageID: turns[0].MessageID, State: session.Queued})
			return err
		})
		wantCode(t, "the same message", err, protocol.CodeAlreadyExists)
		view(t, s, x.user(), func(tx *store.Tx) error {
			got, err := tx.TurnByMessage(ses, turns[0].MessageID)
			if got.ID != turns[0].ID {
				t.Errorf("found %s, want %s", got.ID, turns[0].ID)
			}
			return err
		})
	})
	t.Run("positions", func(t *testing.T) {
		view(t, s, x.user(), func(tx *store.Tx) error {
			for i, turn := range turns {
				if n, err := tx.QueuePosition(turn.ID); err != nil || n != i+1 {
					t.Errorf("turn %d is at %d, %v", i+1, n, err)
				}
			}
			return nil
		})
	})
	t.Run("order and one active turn", func(t *testing.T) { // INV-1
		wantCode(t, "the second before the first", step(turns[1], session.Received), protocol.CodeConflict)
		if err := step(turns[0], session.Received); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "a second active turn", step(turns[1], session.Received), protocol.CodeConflict)
		if err := step(turns[0], session.RunningModel, session.Completed); err != nil {
			t.Fatal(err)
		}
		view(t, s, loop, func(tx *store.Tx) error {
			_, err := tx.ActiveTurn(ses)
			wantCode(t, "no active turn", err, protocol.CodeNotFound)
			return nil
		})
		if err := step(turns[1], session.Received); err != nil {
			t.Fatal(err)
		}
		view(t, s, loop, func(tx *store.Tx) error {
			active, err := tx.ActiveTurn(ses)
			if active.ID != turns[1].ID {
				t.Errorf("%s is active", active.ID)
			}
			n, err2 := tx.QueuePosition(turns[1].ID)
			if n != 0 || err2 != nil {
				t.Errorf("an active turn waits at %d, %v", n, err2)
			}
			return err
		})
	})
	t.Run("fair across tenants", func(t *testing.T) { fair(t, s, x, y) })
	t.Run("depth", func(t *testing.T) { depth(t, s, x, y, ses) })
	t.Run("pages", func(t *testing.T) { turnPages(t, s, x) })
}

// fair: one tenant's hundred sessions do not go before another's one.
func fair(t *testing.T, s *store.Store, x, y *side) {
	update(t, s, loop, func(tx *store.Tx) error {
		for i, one := range []*side{x, x, x, x, y} {
			ses := id[protocol.SessionID]()
			if err := one.newSession(tx, ses, "", time.Time{}); err != nil {
				return err
			}
			for range 2 {
				turn := session.Turn{ID: id[protocol.TurnID](), Session: ses, State: session.Queued, QueuedAt: tx.Now.Add(time.Duration(i) * time.Second)}
				turn.MessageID = turn.ID.String()
				if _, err := tx.InsertTurn(turn); err != nil {
					return err
				}
			}
		}
		return nil
	})
	view(t, s, loop, func(tx *store.Tx) error {
		all, err := tx.Activatable(0)
		seen := map[protocol.SessionID]bool{}
		for _, turn := range all {
			if turn.N != 1 || seen[turn.Session] {
				t.Errorf("turn %d of session %s is not the one first turn", turn.N, turn.Session)
			}
			seen[turn.Session] = true
		}
		if len(all) != 5 || all[0].Tenant != x.Tenant || all[1].Tenant != y.Tenant {
			t.Errorf("%d turns; the other tenant is not among the first two", len(all))
		}
		two, err2 := tx.Activatable(2)
		if len(two) != 2 {
			t.Errorf("%d turns, limit 2", len(two))
		}
		if err == nil {
			err = err2
		}
		return err
	})
}

func depth(t *testing.T, s *store.Store, x, y *side, ses protocol.SessionID) {
	count := func(c store.Caller, tenant protocol.TenantID, p protocol.PrincipalID, ses protocol.SessionID) (n int) {
		view(t, s, c, func(tx *store.Tx) (err error) {
			n, err = tx.QueueDepth(tenant, p, ses)
			return err
		})
		return n
	}
	ofX, ofY := waiting(t, s, x.Tenant), waiting(t, s, y.Tenant)
	for _, try := range []struct {
		what string
		got  int
		want int
	}{
		{"everything", count(loop, "", "", ""), ofX + ofY},
		{"a tenant", count(loop, x.Tenant, "", ""), ofX},
		{"another", count(loop, y.Tenant, "", ""), ofY},
		{"a principal", count(loop, x.Tenant, x.User, ""), ofX},
		{"a session", count(loop, "", "", ses), 1},
		{"a bystander", count(loop, x.Tenant, x.Bystander, ""), 0},
		{"the own tenant", count(x.bystander(), x.Tenant, "", ""), ofX},
		{"all that a principal may count", count(x.user(), "", "", ""), ofX},
		{"another tenant", count(x.user(), y.Tenant, "", ""), 0},
		{"another principal", count(x.bystander(), "", x.User, ""), 0},
	} {
		if try.got != try.want {
			t.Errorf("%s: %d, want %d", try.what, try.got, try.want)
		}
	}
	if ofX < 5 || ofY < 2 {
		t.Errorf("depths %d and %d prove nothing", ofX, ofY)
	}
}

// waiting looks at every turn of a tenant, as a depth does not.
func waiting(t *testing.T, s *store.Store, tenant protocol.TenantID) (n int) {
	view(t, s, loop, func(tx *store.Tx) error {
		n = 0
		for cursor := ""; ; {
			page, next, err := tx.Turns("", 0, cursor)
			for _, turn := range page {
				if turn.Tenant == tenant && turn.State == session.Queued {
					n++
				}
			}
			if cursor = next; err != nil || next == "" {
				return err
			}
		}
	})
	return n
}

func turnPages(t *testing.T, s *store.Store, x *side) {
	ses := id[protocol.SessionID]()
	update(t, s, loop, func(tx *store.Tx) error {
		if err := x.newSession(tx, ses, "", time.Time{}); err != nil {
			return err
		}
		for range 7 {
			if _, err := x.newTurn(tx, ses, id[protocol.TurnID]()); err != nil {
				return err
			}
		}
		return nil
	})
	for _, try := range []struct {
		c       store.Caller
		session protocol.SessionID
	}{{x.user(), ses}, {loop, ses}, {x.user(), ""}, {loop, ""}} {
		seen := map[protocol.TurnID]bool{}
		inSession := 0
		view(t, s, try.c, func(tx *store.Tx) error {
			for cursor := ""; ; {
				page, next, err := tx.Turns(try.session, 3, cursor)
				if err != nil {
					return err
				}
				for _, turn := range page {
					if seen[turn.ID] {
						t.Errorf("%v: turn twice", try)
					}
					seen[turn.ID] = true
					if turn.Session == ses {
						if inSession++; turn.N != int64(8-inSession) {
							t.Errorf("%v: turn %d at place %d", try, turn.N, inSession)
						}
					}
				}
				if cursor = next; cursor == "" {
					return nil
				}
			}
		})
		if inSession != 7 {
			t.Error(fmt.Sprint(try, ": ", inSession, " turns of the session"))
		}
	}
}

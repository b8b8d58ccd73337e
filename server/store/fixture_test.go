package store

import (
	"context"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// loop is the engine, which sees everything.
var loop = AsLoop("test")

// openAt opens the database of a directory and closes it with the test.
func openAt(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), Config{Path: filepath.Join(dir, "bivouac.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func (s *Store) sqlite() *sqliteEngine { return s.engine.(*sqliteEngine) }

// conversation makes a tenant with a principal and an open session.
func conversation(s *Store, name string) (id protocol.SessionID, err error) {
	err = s.Update(context.Background(), loop, func(tx *Tx) error {
		ten, err := tx.EnsureTenant(name)
		if err != nil {
			return err
		}
		p := policy.Principal{ID: newID[protocol.PrincipalID](tx), Tenant: ten.ID, Name: "user"}
		if err := tx.InsertPrincipal(p); err != nil {
			return err
		}
		i, err := tx.EnsureInstance(ten.ID, p.ID, "assistant")
		if err != nil {
			return err
		}
		id = newID[protocol.SessionID](tx)
		return tx.InsertSession(session.Session{ID: id, Tenant: ten.ID, Principal: p.ID, Instance: i.ID, State: session.Open, CreatedAt: tx.Now})
	})
	return id, err
}

// say appends one event.
func say(tx *Tx, id protocol.SessionID, text string) error {
	_, err := tx.AppendEvents(id, session.Event{Type: session.TurnQueued, Payload: text})
	return err
}

// said reads all payloads of a session, and proves its chain. INV-8.
func said(t testing.TB, s *Store, id protocol.SessionID) (texts []string) {
	t.Helper()
	err := s.View(context.Background(), loop, func(tx *Tx) error {
		for after := int64(0); ; {
			page, err := tx.Events(id, after, 0)
			if err != nil {
				return err
			}
			if len(page) == 0 {
				return tx.VerifyEvents(id)
			}
			for _, e := range page {
				texts, after = append(texts, e.Payload), e.Seq
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

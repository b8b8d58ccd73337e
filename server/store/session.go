package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

func (tx *Tx) InsertSession(s session.Session) error {
	panic("store: not built")
}

func (tx *Tx) Session(id protocol.SessionID) (session.Session, error) {
	panic("store: not built")
}

// SessionByKey finds a session by the client's idempotency key.
func (tx *Tx) SessionByKey(principal protocol.PrincipalID, key string) (session.Session, error) {
	panic("store: not built")
}

// Sessions pages the caller's sessions, newest first; cursor is opaque.
func (tx *Tx) Sessions(limit int, cursor string) ([]session.Session, string, error) {
	panic("store: not built")
}

// SaveSession writes state, expiry and last activity, guarded by the prior state.
func (tx *Tx) SaveSession(s session.Session, prior session.State) error {
	panic("store: not built")
}

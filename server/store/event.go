package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

// AppendEvents gives each event the next sequence of the session, on its locked row, and chains it by hash. INV-8.
func (tx *Tx) AppendEvents(s protocol.SessionID, events ...session.Event) ([]session.Stored, error) {
	panic("store: not built")
}

func (tx *Tx) Events(s protocol.SessionID, after int64, limit int) ([]session.Stored, error) {
	panic("store: not built")
}

func (tx *Tx) EventsOfTurn(t protocol.TurnID, after int64, limit int) ([]session.Stored, error) {
	panic("store: not built")
}

// SaveProjection stores the messages that one ended turn adds to the conversation.
func (tx *Tx) SaveProjection(s protocol.SessionID, t protocol.TurnID, n int64, messages []byte) error {
	panic("store: not built")
}

// Projection returns the encoded messages of each ended turn, in order.
func (tx *Tx) Projection(s protocol.SessionID) ([][]byte, error) {
	panic("store: not built")
}

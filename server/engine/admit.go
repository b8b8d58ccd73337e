package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// NewSession asks for a conversation with an agent.
type NewSession struct {
	Agent string
	// IdempotencyKey: the same key returns the same session.
	IdempotencyKey string
}

// NewTurn is one prompt.
type NewTurn struct {
	Session   protocol.SessionID
	MessageID string // unique within the session; the client makes it
	Prompt    string
	// WorkspaceDigest names an artifact of the caller, or nothing.
	WorkspaceDigest string
	TraceParent     string
}

// Admission is the durable answer to a prompt.
type Admission struct {
	Turn      session.Turn
	Duplicate bool
	// Position is 1 for the turn that is activated next; zero when it is not queued.
	Position int
	// EstimatedWait before activation, from recent turns.
	EstimatedWait time.Duration
}

// CreateSession opens a conversation.
func (e *Engine) CreateSession(ctx context.Context, c store.Caller, p NewSession) (session.Session, error) {
	panic("engine: not built")
}

// CloseSession takes no more turns, cancels queued ones and lets the active one
// end. It is idempotent.
func (e *Engine) CloseSession(ctx context.Context, c store.Caller, id protocol.SessionID) (session.Session, error) {
	panic("engine: not built")
}

// SubmitTurn queues a prompt. INV-15: a duplicate message returns its turn.
func (e *Engine) SubmitTurn(ctx context.Context, c store.Caller, p NewTurn) (Admission, error) {
	panic("engine: not built")
}

// CancelTurn ends a queued turn at once and asks an active one to end. It is
// idempotent; a turn that has ended is returned as it is.
func (e *Engine) CancelTurn(ctx context.Context, c store.Caller, id protocol.TurnID) (session.Turn, error) {
	panic("engine: not built")
}

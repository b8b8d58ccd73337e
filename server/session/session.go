package session

import (
	"time"

	"bivouac/edge/protocol"
)

// State of a session.
type State string

const (
	Open    State = "OPEN"
	Closing State = "CLOSING"
	Closed  State = "CLOSED"
	Expired State = "EXPIRED"
	Revoked State = "REVOKED"
)

// Session is one conversation of one principal with one agent. It binds tenant,
// principal, agent definition and data boundary; its id alone grants nothing.
type Session struct {
	ID           protocol.SessionID
	Tenant       protocol.TenantID
	Principal    protocol.PrincipalID
	Instance     protocol.InstanceID
	Generation   int64
	Agent        string
	AgentDigest  string
	State        State
	DataBoundary string
	CreatedAt    time.Time
	LastActiveAt time.Time
	ExpiresAt    time.Time // maximum lifetime
	IdleTTL      time.Duration
	// IdempotencyKey is the client's, unique per principal; empty: none.
	IdempotencyKey string
	// LastSeq and LastHash are the end of the event chain. INV-8.
	LastSeq  int64
	LastHash []byte
	// Queued is how many of its turns wait; the store counts them.
	Queued int
}

package session

import (
	"time"

	"bivouac/edge/protocol"
)

// EventType names what happened. Types are append only.
type EventType string

const (
	SessionCreated  EventType = "session.created"
	SessionClosed   EventType = "session.closed"
	SessionRevoked  EventType = "session.revoked"
	TurnQueued      EventType = "turn.queued"
	TurnActivated   EventType = "turn.activated"
	TurnMoved       EventType = "turn.state"
	TurnEnded       EventType = "turn.ended"
	UsageSettled    EventType = "usage.settled"
	CancelRequested EventType = "turn.cancel_requested"
	ModelCalled     EventType = "model.called"
	ModelAnswered   EventType = "model.answered"
	ModelFailed     EventType = "model.failed"
	ToolRequested   EventType = "tool.requested"
	ToolDispatched  EventType = "tool.dispatched"
	ToolFinished    EventType = "tool.finished"
	ToolUnknown     EventType = "tool.unknown"
	UnknownResolved EventType = "tool.resolved"
	ApprovalAsked   EventType = "approval.requested"
	ApprovalDecided EventType = "approval.decided"
	ApprovalUsed    EventType = "approval.consumed"
	OwnerAsked      EventType = "owner.requested"
	OwnerDecided    EventType = "owner.decided"
	AttemptQueued   EventType = "attempt.queued"
	AttemptClaimed  EventType = "attempt.claimed"
	AttemptStarted  EventType = "attempt.started"
	AttemptEnded    EventType = "attempt.ended"
	SandboxMoved    EventType = "sandbox.moved"
	LateResult      EventType = "attempt.evidence"
	CheckpointTaken EventType = "turn.checkpoint"
	GrantRotated    EventType = "grant.rotated" // whose secret part was renewed; the session goes on
)

// Event is one durable fact of a session before the store gives it a sequence
// and a hash. Data is flat and holds no payload; Payload is text that may be
// erased later without breaking the chain, which binds only its salted digest.
type Event struct {
	Type     EventType
	Turn     protocol.TurnID
	Action   protocol.ActionID
	Attempt  protocol.AttemptID
	Approval protocol.ApprovalID
	Data     map[string]string
	Payload  string
}

// Stored is an event as the store keeps it.
type Stored struct {
	Event
	Session  protocol.SessionID
	Seq      int64
	At       time.Time
	Bytes    []byte // canonical bytes, hashed as they are
	PrevHash []byte
	Hash     []byte
}

package session

import (
	"time"

	"bivouac/edge/protocol"
)

// ApprovalState is a state of an approval.
type ApprovalState string

const (
	ApprovalPending   ApprovalState = "PENDING"
	ApprovalApproved  ApprovalState = "APPROVED"
	ApprovalDenied    ApprovalState = "DENIED"
	ApprovalExpired   ApprovalState = "EXPIRED"
	ApprovalCancelled ApprovalState = "CANCELLED"
	ApprovalConsumed  ApprovalState = "CONSUMED"
)

// Terminal reports a state without exits. INV-2.
func (s ApprovalState) Terminal() bool {
	return s != ApprovalPending && s != ApprovalApproved
}

// Approval asks a person for one action with exactly one digest.
type Approval struct {
	ID        protocol.ApprovalID
	Action    protocol.ActionID // the subject
	Turn      protocol.TurnID
	Session   protocol.SessionID
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	State     ApprovalState
	Tool      string
	// Destination is the broker's destination or the runner's id.
	Destination string
	Arguments   string
	// Digest binds principal, tool, destination, arguments, data boundary,
	// policy digest, pre-image and expiry: see Subject.Digest.
	Digest     string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	DecidedAt  time.Time
	DecidedBy  protocol.PrincipalID
	Reason     string
	ConsumedBy protocol.ActionID
	ConsumedAt time.Time
}

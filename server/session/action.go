package session

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// ActionState is a state of one tool call that the engine dispatches.
type ActionState string

const (
	// Intended: the intent is durable, nothing was dispatched. INV-4.
	Intended ActionState = "INTENDED"
	// AwaitingApproval: the subject of a pending approval; it is never
	// dispatched itself. An approval makes a new action. INV-6.
	AwaitingApproval ActionState = "AWAITING_APPROVAL"
	Dispatched       ActionState = "DISPATCHED"
	// Reconciling: dispatched, outcome not known, evidence is being sought.
	Reconciling     ActionState = "RECONCILING"
	Succeeded       ActionState = "SUCCEEDED"
	ActionFailed    ActionState = "FAILED"
	Denied          ActionState = "DENIED"
	Superseded      ActionState = "SUPERSEDED" // approved, carried out by another action
	ActionCancelled ActionState = "CANCELLED"
	ActionUnknown   ActionState = "UNKNOWN"
)

// Terminal reports a state without exits. INV-2.
func (s ActionState) Terminal() bool {
	switch s {
	case Succeeded, ActionFailed, Denied, Superseded, ActionCancelled, ActionUnknown:
		return true
	}
	return false
}

// Action is one tool call with everything that its effect is bound to.
type Action struct {
	ID        protocol.ActionID
	Turn      protocol.TurnID
	Session   protocol.SessionID
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	// CallID is the model's; one action answers it, or an approved successor.
	CallID    string
	Tool      string // stable reference
	Alias     string
	Placement runtimev1.Placement
	Effect    runtimev1.Effect
	Recovery  runtimev1.Recovery
	State     ActionState
	// Arguments are canonical JSON (RFC 8785); ArgumentsDigest is over them.
	Arguments       string
	ArgumentsDigest string
	Destination     string
	// ResourceKey is refused while an unknown outcome on it is unresolved. INV-5.
	ResourceKey    string
	IdempotencyKey string
	// PreImageDigest is bound into the approval of files.write.
	PreImageDigest string
	// Fence under which it may be dispatched and settled. INV-3.
	Fence    protocol.Fence
	Attempt  protocol.AttemptID
	Approval protocol.ApprovalID // consumed by this action
	// SupersededBy is the action that an approval made.
	SupersededBy protocol.ActionID
	IntentAt     time.Time
	DispatchedAt time.Time
	OutcomeAt    time.Time
	// Result is the encoded runtimev1.ToolResult that the model gets.
	Result   []byte
	Code     string
	Evidence string
	// Resolution of an unknown outcome: appended by a person, changes no state.
	Resolution     string
	ResolutionNote string
	ResolvedBy     protocol.PrincipalID
	ResolvedAt     time.Time
}

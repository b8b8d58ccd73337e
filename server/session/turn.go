package session

import (
	"time"

	"bivouac/edge/protocol"
)

// TurnState is a state of a turn.
type TurnState string

const (
	Queued                TurnState = "QUEUED"
	Received              TurnState = "RECEIVED"
	RunningModel          TurnState = "RUNNING_MODEL"
	WaitingAction         TurnState = "WAITING_ACTION"
	WaitingApproval       TurnState = "WAITING_APPROVAL"
	RunningAction         TurnState = "RUNNING_ACTION"
	WaitingReconciliation TurnState = "WAITING_RECONCILIATION"
	Completed             TurnState = "COMPLETED"
	Failed                TurnState = "FAILED"
	Cancelled             TurnState = "CANCELLED"
	Unknown               TurnState = "UNKNOWN"
)

// Placement says where the loop of a turn runs.
type Placement string

const (
	PlacementService Placement = "service" // in the server's engine
	PlacementRunner  Placement = "runner"  // in the worker of one attempt
)

// Turn is one prompt and all that follows from it.
type Turn struct {
	ID        protocol.TurnID
	Session   protocol.SessionID
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	// N is the place in the session's order, from 1.
	N         int64
	MessageID string
	// MessageDigest is over prompt and workspace: a duplicate id with another
	// body is a conflict. INV-15.
	MessageDigest   string
	Prompt          string
	WorkspaceDigest string
	State           TurnState
	// Reason is a stable word for a failed, cancelled or unknown turn; Message
	// is for people.
	Reason    string
	Message   string
	Answer    string
	Placement Placement
	QueuedAt  time.Time
	// QueueDeadline cancels a turn that was never activated.
	QueueDeadline time.Time
	ActivatedAt   time.Time
	// Deadline ends an active turn: max wall time, and not_placed before that.
	Deadline          time.Time
	EndedAt           time.Time
	CancelRequestedAt time.Time
	// ReconcileDeadline is set in WAITING_RECONCILIATION.
	ReconcileDeadline time.Time
	// Snapshot is what activation froze: deterministic JSON of policy.Snapshot.
	Snapshot       []byte
	SnapshotDigest string
	// Owner row: which replica drives the turn, under which fence.
	// Every write of a server-side loop is guarded by OwnerFence.
	Owner      protocol.ReplicaID
	OwnerFence protocol.Fence
	// Loop is the encoded runtimev1.LoopState; PatchDigest belongs to it and the
	// two are written together. INV: a checkpoint is a pair.
	Loop        []byte
	PatchDigest string
	// ModelCall is the call in flight, if any.
	ModelCall protocol.CallID
	// Attempt is the current runner attempt of a runner-placed turn; Attempts
	// counts them.
	Attempt  protocol.AttemptID
	Attempts int
	// What all attempts used: what the broker counted or the loop, whichever is
	// more. It never falls, and is final at UsageSettledAt. INV-19.
	InputTokens    int64
	OutputTokens   int64
	CostMicroUSD   int64
	ModelCalls     int64
	UsageSettledAt time.Time
	Slice          protocol.SliceID
	TraceParent    string
}

// Active reports whether the turn occupies its session. INV-1.
func (s TurnState) Active() bool {
	return s != Queued && !s.Terminal()
}

// Terminal reports a state without exits. INV-2.
func (s TurnState) Terminal() bool {
	switch s {
	case Completed, Failed, Cancelled, Unknown:
		return true
	}
	return false
}

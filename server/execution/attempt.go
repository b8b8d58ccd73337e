package execution

import (
	"time"

	"bivouac/edge/protocol"
)

// AttemptState is a state of an attempt.
type AttemptState string

const (
	AttemptQueued  AttemptState = "QUEUED"
	AttemptOffered AttemptState = "OFFERED"
	AttemptClaimed AttemptState = "CLAIMED"
	AttemptRunning AttemptState = "RUNNING"
	// Suspect: the lease's authority ran out; retention has not.
	AttemptSuspect     AttemptState = "SUSPECT"
	AttemptSucceeded   AttemptState = "SUCCEEDED"
	AttemptFailed      AttemptState = "FAILED"
	AttemptCancelled   AttemptState = "CANCELLED"
	AttemptInterrupted AttemptState = "INTERRUPTED" // the machine is gone: a known outcome
	AttemptUnknown     AttemptState = "UNKNOWN"
)

// Terminal reports a state without exits. INV-2.
func (s AttemptState) Terminal() bool {
	switch s {
	case AttemptSucceeded, AttemptFailed, AttemptCancelled, AttemptInterrupted, AttemptUnknown:
		return true
	}
	return false
}

// SubjectKind says what an attempt works for.
type SubjectKind string

const (
	SubjectTurn   SubjectKind = protocol.KindTurn
	SubjectAction SubjectKind = protocol.KindAction
)

// Requirements are what placement must satisfy; never less. INV-11.
type Requirements struct {
	Boundary string `json:"boundary,omitempty"` // "" needs no sandbox
	// Trust "untrusted" needs cgroup limits.
	Trust   string              `json:"trust,omitempty"`
	Runners []protocol.RunnerID `json:"runners,omitempty"` // exact runners; empty: any bound one
	Action  string              `json:"action,omitempty"`  // device action
	Adapter string              `json:"adapter,omitempty"`
	OS      string              `json:"os,omitempty"`
	Arch    string              `json:"arch,omitempty"`
	// Resumes: it goes on from a checkpoint.
	Resumes bool `json:"resumes,omitempty"`
	// Egress: its sandbox may read packages from registries.
	Egress bool `json:"egress,omitempty"`
	// Allocation: its supervisor is a task of its own, started by the scheduler that runs
	// the runner.
	Allocation bool `json:"allocation,omitempty"`
	// Resources are what its sandboxes may use, where it needs an allocation for them.
	Resources Resources `json:"resources,omitzero"`
	// Asked are the owners of machines who are asked about a turn before their machine
	// takes it. It is no need of the work, but it lives as long as placement does.
	Asked []OwnerAsked `json:"asked,omitempty"`
}

// Resources of sandboxes: thousandths of a core, and bytes.
type Resources struct {
	CPUMillis   int64 `json:"cpu_millis,omitempty"`
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	DiskBytes   int64 `json:"disk_bytes,omitempty"`
}

// OwnerAsked is a question to the owner of one machine, by that machine's word.
type OwnerAsked struct {
	Runner protocol.RunnerID `json:"runner"`
	Digest string            `json:"digest"`
	At     time.Time         `json:"at"`
	// HeardAt is when the machine said last that it still asks.
	HeardAt time.Time `json:"heard_at"`
	Until   time.Time `json:"until"`
}

// Attempt is one execution of a subject on a runner.
type Attempt struct {
	ID           protocol.AttemptID
	Tenant       protocol.TenantID
	Principal    protocol.PrincipalID
	SubjectKind  SubjectKind
	SubjectID    string
	Number       int
	State        AttemptState
	Requirements Requirements
	PolicyDigest string
	// Work is the encoded runnerv1.Work; SpecDigest is its SHA-256.
	Work       []byte
	SpecDigest string
	Runner     protocol.RunnerID // offered to, then claimed by
	BootNonce  string            // of the supervisor that claimed
	Fence      protocol.Fence    // zero before the claim
	// Capability terms given with each renewal are minted, never stored.
	AuthorityTTL time.Duration
	Retention    time.Duration
	QueuedAt     time.Time
	// PlacementDeadline fails an attempt that nobody claimed: not_placed.
	PlacementDeadline time.Time
	OfferedAt         time.Time
	// Allocation is the id of the job that starts the supervisor of the present offer;
	// empty: the runner starts it. Allocations counts the offers that had one, so that no
	// id is used twice, and AllocationAskedAt is when the job was asked for, once.
	Allocation        string
	Allocations       int
	AllocationAskedAt time.Time
	ClaimedAt         time.Time
	StartedAt         time.Time
	// RenewedAt is the durable floor of the lease clock; renewals themselves
	// cost no write, the connection's owner keeps them in memory.
	RenewedAt      time.Time
	Deadline       time.Time
	EndedAt        time.Time
	StopAt         time.Time // stop was asked
	StopReason     string
	AcceptedSeq    int64 // journal records accepted so far
	Reason         string
	Message        string
	DeferReason    string // why placement finds nothing, for explain
	TraceParent    string
	IdempotencyKey string
}

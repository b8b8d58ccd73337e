package execution

import (
	"time"

	"bivouac/edge/protocol"
)

// RunnerState is a state of a runner.
type RunnerState string

const (
	RunnerActive  RunnerState = "ACTIVE"
	RunnerRevoked RunnerState = "REVOKED"
	RunnerLeft    RunnerState = "LEFT"
)

// Facts are what a runner says of itself: for placement, never for authority.
type Facts struct {
	OS             string   `json:"os"`
	Arch           string   `json:"arch"`
	Version        string   `json:"version"`
	BootID         string   `json:"boot_id"`
	Slots          int      `json:"slots"`
	Boundary       string   `json:"boundary"`
	Limits         string   `json:"limits"`
	Actions        []string `json:"actions"`
	Toolchains     []string `json:"toolchains"`
	Adapters       []string `json:"adapters"`
	Paused         bool     `json:"paused"`
	SandboxProblem string   `json:"sandbox_problem,omitempty"`
	// Harnesses carry turns out, one for each adapter; runners of before say none.
	Harnesses []Harness `json:"harnesses,omitempty"`
	// MaxActions at once and MaxTokensPerDay are what its owner admits; zero: no bound.
	MaxActions      int   `json:"max_actions,omitempty"`
	MaxTokensPerDay int64 `json:"max_tokens_per_day,omitempty"`
	// RefusesEgress: its owner lets no sandbox read packages.
	RefusesEgress bool `json:"refuses_egress,omitempty"`
	// Allocations: it waits for supervisors that the scheduler which runs it starts.
	Allocations bool `json:"allocations,omitempty"`
	// SecondKeys are over what its owner is asked on the machine: device actions, and
	// "turn".
	SecondKeys []string `json:"second_keys,omitempty"`
	// Host is the machine's own name.
	Host string `json:"host,omitempty"`
	// NoBroker is when a model call from there did not reach the broker; zero: the
	// newest one did.
	NoBroker time.Time `json:"no_broker,omitzero"`
	// Copy is the last other machine that came with this runner's key; zero for none.
	Copy Copy `json:"copy,omitzero"`
}

// Harness is the loop that a machine runs in sandboxes for one adapter.
type Harness struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Protocol int32  `json:"protocol"`
}

// Copy is a machine that was refused because it has a runner's key and an older
// memory of its connection than the machine that is connected: one of the two
// state directories is a copy of the other.
type Copy struct {
	At     time.Time `json:"at"`
	Host   string    `json:"host"`
	BootID string    `json:"boot_id"`
}

// Runner is one enrolled machine.
type Runner struct {
	ID     protocol.RunnerID
	Tenant protocol.TenantID
	Owner  protocol.PrincipalID
	Name   string
	// Thumbprint is base64url SHA-256 of the public key (SubjectPublicKeyInfo).
	Thumbprint string
	PublicKey  []byte
	State      RunnerState
	Facts      Facts
	EnrolledAt time.Time
	LastSeenAt time.Time
	// Workload is the node whose workload identity the machine came with; empty: it
	// came with a join code.
	Workload string
	// MailboxSeq is the last sequence given, AckedSeq the last acknowledged.
	MailboxSeq int64
	AckedSeq   int64
}

// Connection is which replica talks to a runner, by compare-and-set on Epoch.
type Connection struct {
	Runner    protocol.RunnerID
	Epoch     int64
	Replica   protocol.ReplicaID
	BootNonce string
	Transport string // "http/3" or "http/2"
	TakenAt   time.Time
	// ExpiresAt is leased by the replica while the runner is attached.
	ExpiresAt time.Time
}

// Binding lets one principal use one runner for some actions.
type Binding struct {
	ID        protocol.BindingID
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	Runner    protocol.RunnerID
	// Actions are device actions, and "turn" for whole turns in a sandbox.
	Actions   []string
	CreatedAt time.Time
	RemovedAt time.Time
}

// MailboxItem is one durable command to a runner.
type MailboxItem struct {
	Runner    protocol.RunnerID
	Seq       int64
	Attempt   protocol.AttemptID // zero for a command about the runner
	Body      []byte             // encoded runnerv1.AttachResponse without its seq
	CreatedAt time.Time
}

// JoinCode is a single-use invitation; the code itself is never stored.
type JoinCode struct {
	Hash      []byte
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	Name      string
	Actions   []string
	CreatedAt time.Time
	ExpiresAt time.Time
	UsedAt    time.Time
	Runner    protocol.RunnerID
	// Thumbprint of the key that used it: the same key may repeat the call.
	Thumbprint string
}

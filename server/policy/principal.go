package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// Tenant is a closed world: nothing crosses it.
type Tenant struct {
	ID        protocol.TenantID
	Name      string
	CreatedAt time.Time
}

// Principal is a user or a service of one tenant.
type Principal struct {
	ID     protocol.PrincipalID
	Tenant protocol.TenantID
	Name   string
	Kind   string // "user" or "service"
	// Admin may manage agents, principals, runners, grants and credentials of
	// its tenant; Operator may also make tenants.
	Admin      bool
	Operator   bool
	TokenHash  []byte
	CreatedAt  time.Time
	DisabledAt time.Time
}

// Definition is a stored version of an agent definition.
type Definition struct {
	Tenant    protocol.TenantID
	Name      string
	Digest    string
	Version   int
	Filename  string
	Source    []byte
	CreatedAt time.Time
	CreatedBy protocol.PrincipalID
}

// Instance is one agent for one principal: durable identity and generation.
type Instance struct {
	ID         protocol.InstanceID
	Tenant     protocol.TenantID
	Principal  protocol.PrincipalID
	Agent      string
	Generation int64
	CreatedAt  time.Time
}

// Grant is the renewable authority of a principal to an agent. Sealed is
// ciphertext that only the broker opens.
type Grant struct {
	ID          protocol.GrantID
	Tenant      protocol.TenantID
	Principal   protocol.PrincipalID
	Agent       string
	Credentials []string
	Sealed      []byte
	CreatedAt   time.Time
	RevokedAt   time.Time
}

// Slice is a part of a turn's budget, reserved for one boot of one broker.
type Slice struct {
	ID         protocol.SliceID
	Tenant     protocol.TenantID
	Turn       protocol.TurnID
	BrokerBoot string
	// Ceiling is cumulative; Drawn is what the broker reported last.
	CeilingMicroUSD int64
	DrawnMicroUSD   int64
	// What its model calls used, as the broker counted it.
	InputTokens, OutputTokens, ModelCalls int64
	ClosedAt                              time.Time
}

// FloorKind names what a floor bounds; the values are those of the feed.
type FloorKind int32

const (
	FloorGrant     FloorKind = 1
	FloorRunner    FloorKind = 2
	FloorInstance  FloorKind = 3
	FloorSession   FloorKind = 4
	FloorTurn      FloorKind = 5
	FloorAttempt   FloorKind = 6
	FloorPrincipal FloorKind = 7
	// FloorStore bounds the fence of every capability: its upper half is the epoch
	// of the store that gave it out.
	FloorStore FloorKind = 8
)

// StoreFloor is the one subject of a FloorStore.
const StoreFloor = "store"

// Floor refuses every capability that names ID with a lower value than
// Minimum. It is the one form of revocation that brokers see.
type Floor struct {
	Seq     int64
	Kind    FloorKind
	ID      string
	Minimum int64
	At      time.Time
	// ExpiresAt lets floors go that no living capability can be below; zero: never.
	ExpiresAt time.Time
}

// Cleanup is a durable request made in the transaction that ended what needed
// it. INV-18.
type Cleanup struct {
	ID        protocol.CleanupID
	Tenant    protocol.TenantID
	Kind      string // "attempt", "slice", "sessions", "blob", "flows"
	Subject   string
	CreatedAt time.Time
	Tries     int
	NextAt    time.Time
	DoneAt    time.Time
	Evidence  string
}

// Artifact is a blob that a session, turn or principal may read. The bytes live
// outside the database under the digest.
type Artifact struct {
	Digest    string
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	Session   protocol.SessionID // zero: uploaded, not yet used
	Turn      protocol.TurnID
	Kind      string // "workspace", "patch", "output"
	Size      int64
	CreatedAt time.Time
}

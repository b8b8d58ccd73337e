package policy

import "time"

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

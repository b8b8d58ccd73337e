package execution

import (
	"time"

	"bivouac/edge/protocol"
)

// Replica is one server of those that share a store.
type Replica struct {
	ID protocol.ReplicaID
	// Boot is the process that runs as this replica now.
	Boot string
	// Beat grows with each sign of life. No clock is in it: whoever judges whether
	// the replica lives measures by its own how long the number stood still.
	Beat int64
	// Blobs names the place of its artifacts; replicas of one store share it.
	Blobs     string
	StartedAt time.Time
}

// Lead is the leave of one replica to run the ticks that one alone runs. Its
// fence grows with every holder.
type Lead struct {
	Name    string
	Replica protocol.ReplicaID
	Fence   protocol.Fence
	TakenAt time.Time
}

// Statement is the root's word over one signing key.
type Statement struct {
	JWS     string
	Replica protocol.ReplicaID
	EndsAt  time.Time
}

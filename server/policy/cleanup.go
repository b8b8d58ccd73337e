package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// What a cleanup removes.
const (
	CleanupAttempt  = "attempt"  // the machine has to say that it is gone
	CleanupSlice    = "slice"    // the broker has to close it
	CleanupSessions = "sessions" // those that stand on an authority that was taken back
	CleanupRotation = "rotation" // the older secret part of a grant that is being renewed
)

// Cleanup is a durable request made in the transaction that ended what needed
// it. INV-18.
type Cleanup struct {
	ID        protocol.CleanupID
	Tenant    protocol.TenantID
	Kind      string // one of the kinds above
	Subject   string
	CreatedAt time.Time
	Tries     int
	NextAt    time.Time
	DoneAt    time.Time
	Evidence  string
}

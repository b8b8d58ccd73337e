package execution

import "time"

// LeaseState is what the server may believe about a holder.
type LeaseState string

const (
	LeaseAlive LeaseState = "ALIVE"
	// LeaseSuspect: the holder's authority is over; its work may still be there.
	LeaseSuspect LeaseState = "SUSPECT"
	// LeaseOver: the holder has ended its work by itself. Another may start.
	LeaseOver LeaseState = "OVER"
)

// LeaseGuard is what the server waits beyond retention, for a renewal that was
// on its way and for the holder to finish killing.
const LeaseGuard = 2 * time.Second

// Lease is the server's side of one lease: two durations that run from the last
// renewal. Readings are those of lease.Elapsed, so they count suspend and no
// clock setting lengthens them (INV-20). The holder measures from when it sent
// the renewal, the server from when it answered: the server's end is never
// before the holder's.
type Lease struct {
	AuthorityTTL time.Duration
	Retention    time.Duration
	Guard        time.Duration
	renewedAt    time.Duration
}

// NewLease starts, or after a restart or hand-over of the connection row
// restarts, all durations at a reading.
func NewLease(ttl, retention time.Duration, at time.Duration) Lease {
	return Lease{AuthorityTTL: ttl, Retention: max(ttl, retention), Guard: LeaseGuard, renewedAt: at}
}

// Renewed is the lease after a renewal answered at a reading. A reading from
// before the last one changes nothing.
func (l Lease) Renewed(at time.Duration) Lease {
	l.renewedAt = max(l.renewedAt, at)
	return l
}

// State at a reading.
func (l Lease) State(at time.Duration) LeaseState {
	switch held := at - l.renewedAt; {
	case held < l.AuthorityTTL:
		return LeaseAlive
	case held < l.Retention+l.Guard:
		return LeaseSuspect
	}
	return LeaseOver
}

// NextIn is how long after a reading the state changes; zero when it is over.
func (l Lease) NextIn(at time.Duration) time.Duration {
	switch l.State(at) {
	case LeaseAlive:
		return l.renewedAt + l.AuthorityTTL - at
	case LeaseSuspect:
		return l.renewedAt + l.Retention + l.Guard - at
	}
	return 0
}

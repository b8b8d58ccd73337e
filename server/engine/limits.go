package engine

import "time"

// Limits of one server. Zero fields mean the defaults of DefaultLimits.
type Limits struct {
	// MaxQueued turns of one tenant and one principal; a session's own limit is
	// in its agent definition.
	MaxQueuedTenant    int
	MaxQueuedPrincipal int
	// MaxPrompt bounds a prompt in bytes, MaxArguments a tool call's arguments.
	MaxPrompt    int
	MaxArguments int
	// OwnerTTL is how long a replica that says nothing keeps its turns.
	OwnerTTL time.Duration
	// ConnectionTTL is how long a replica keeps a runner that says nothing.
	ConnectionTTL time.Duration
	// OfferTTL is how long an offer waits for its claim before it goes elsewhere.
	OfferTTL time.Duration
	// Reconcile is how long evidence is sought before an outcome is UNKNOWN.
	Reconcile time.Duration
	// Guard is added to retention before work goes to another machine.
	Guard time.Duration
	// CapabilityTTL of every capability.
	CapabilityTTL time.Duration
	// DescribeEvery is how old the view of the broker may become.
	DescribeEvery time.Duration
	// Poll is the slow poll behind every wake-up.
	Poll time.Duration
}

// DefaultLimits are what a server starts with.
func DefaultLimits() Limits {
	return Limits{
		MaxQueuedTenant:    1000,
		MaxQueuedPrincipal: 100,
		MaxPrompt:          256 << 10,
		MaxArguments:       256 << 10,
		OwnerTTL:           15 * time.Second,
		ConnectionTTL:      30 * time.Second,
		OfferTTL:           10 * time.Second,
		Reconcile:          60 * time.Second,
		Guard:              2 * time.Second,
		CapabilityTTL:      time.Minute,
		DescribeEvery:      5 * time.Second,
		Poll:               time.Second,
	}
}

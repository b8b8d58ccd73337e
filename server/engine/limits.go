package engine

import "time"

// Limits of one server. Zero fields mean the defaults of DefaultLimits.
type Limits struct {
	// MaxQueued turns of one tenant and one principal; a session's own limit is
	// in its agent definition.
	MaxQueuedTenant    int
	MaxQueuedPrincipal int
	// MaxPrompt bounds a prompt in bytes.
	MaxPrompt int
	// MaxSessionIdle and MaxSessionLifetime narrow what agents allow to the sessions
	// that begin from now on; MaxApprovalWait narrows how long a question may wait for
	// a person. Zero: the agent's own.
	MaxSessionIdle     time.Duration
	MaxSessionLifetime time.Duration
	MaxApprovalWait    time.Duration
	// OwnerTTL is how long a replica that says nothing keeps its turns.
	OwnerTTL time.Duration
	// ReplicaTTL is how long a replica may give no sign of life before others take
	// its place. Zero: 1 s, and OwnerTTL for one that is alone.
	ReplicaTTL time.Duration
	// ConnectionTTL is how long a replica keeps a runner that says nothing.
	ConnectionTTL time.Duration
	// OfferTTL is how long an offer waits for its claim before it goes elsewhere.
	OfferTTL time.Duration
	// AllocationTTL is the same for an offer whose supervisor another scheduler starts.
	AllocationTTL time.Duration
	// CapabilityTTL of every capability.
	CapabilityTTL time.Duration
	// DescribeEvery is how old the view of the broker may become.
	DescribeEvery time.Duration
	// UsageEvery is how often the draw of open slices is asked.
	UsageEvery time.Duration
	// MaxSessionEvents of one session; a longer conversation is a new one.
	MaxSessionEvents int
	// UploadTTL is how long an upload waits for a turn that uses it, SweepEvery how
	// often what nobody may read is removed.
	UploadTTL  time.Duration
	SweepEvery time.Duration
	// SealEvery is how often what happened is sealed in the ledger.
	SealEvery time.Duration
	// Poll is the slow poll behind every wake-up.
	Poll time.Duration
}

// defaultReplicaTTL leaves room for a failover within two seconds.
const defaultReplicaTTL = time.Second

// DefaultLimits are what a server starts with.
func DefaultLimits() Limits {
	return Limits{
		MaxQueuedTenant:    1000,
		MaxQueuedPrincipal: 100,
		MaxPrompt:          256 << 10,
		OwnerTTL:           15 * time.Second,
		ConnectionTTL:      30 * time.Second,
		OfferTTL:           10 * time.Second,
		AllocationTTL:      5 * time.Minute,
		CapabilityTTL:      time.Minute,
		DescribeEvery:      5 * time.Second,
		UsageEvery:         2 * time.Second,
		SealEvery:          10 * time.Second,
		MaxSessionEvents:   100_000,
		UploadTTL:          7 * 24 * time.Hour,
		SweepEvery:         time.Hour,
		Poll:               time.Second,
	}
}

// renewRows is how often a replica renews the rows that it holds, and learns which of
// them another has taken.
func (l Limits) renewRows() time.Duration { return min(l.OwnerTTL, l.ConnectionTTL) / 3 }

// learnsWithin is how long a replica may go on with a runner that went to another: by
// then it has renewed its rows, with the first sign of life after they are due, or could
// give no sign for the ttl and stops by itself.
func (l Limits) learnsWithin() time.Duration {
	return l.renewRows() + l.ReplicaTTL/beatsPerTTL + l.ReplicaTTL
}

// narrowed is a duration of an agent under a limit of the server. INV-10.
func narrowed(agent, server time.Duration) time.Duration {
	if server > 0 && server < agent {
		return server
	}
	return agent
}

// orDefault fills zero fields in.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	for _, n := range []struct{ is, or *int }{
		{&l.MaxQueuedTenant, &d.MaxQueuedTenant}, {&l.MaxQueuedPrincipal, &d.MaxQueuedPrincipal}, {&l.MaxPrompt, &d.MaxPrompt}, {&l.MaxSessionEvents, &d.MaxSessionEvents},
	} {
		if *n.is == 0 {
			*n.is = *n.or
		}
	}
	for _, t := range []struct{ is, or *time.Duration }{
		{&l.OwnerTTL, &d.OwnerTTL}, {&l.ConnectionTTL, &d.ConnectionTTL}, {&l.OfferTTL, &d.OfferTTL}, {&l.AllocationTTL, &d.AllocationTTL},
		{&l.CapabilityTTL, &d.CapabilityTTL}, {&l.DescribeEvery, &d.DescribeEvery}, {&l.UsageEvery, &d.UsageEvery}, {&l.Poll, &d.Poll}, {&l.SealEvery, &d.SealEvery}, {&l.UploadTTL, &d.UploadTTL}, {&l.SweepEvery, &d.SweepEvery},
	} {
		if *t.is == 0 {
			*t.is = *t.or
		}
	}
	return l
}

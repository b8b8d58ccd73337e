package policy

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Profile is the kind of use an agent is made for: what a definition has that
// says nothing, and what none may exceed. It narrows and never grants (INV-10).
type Profile struct {
	Name      string
	Placement string
	Default   Agent // limits, sandbox, lease, approvals
	// Ceiling bounds limits, sandbox, lease and approvals.
	Ceiling Agent
	// NeverApprove is the highest effect whose approval a definition may turn
	// off by approval = "never".
	NeverApprove runtimev1.Effect
}

// ProfileNames are the profiles that exist.
var ProfileNames = []string{"personal", "coding", "enterprise"}

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	day = 24 * time.Hour
)

// ProfileOf finds a profile by name.
func ProfileOf(name string) (Profile, bool) {
	p := Profile{Name: name, Placement: "service", NeverApprove: runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL, Ceiling: ceiling}
	p.Default = Agent{
		Profile: name, Trust: protocol.TrustUntrusted, Adapter: protocol.AdapterNative, Boundary: protocol.BoundaryProcess,
		Model: Model{MaxOutputTokens: 4096},
		Limits: Limits{
			MaxModelCalls: 24, MaxToolCalls: 48, MaxCorrections: 4, MaxTokens: 400_000,
			MaxCostMicroUSD: 2_000_000, MaxWall: 30 * time.Minute, MaxResultBytes: int32(64 * kib),
			MaxQueued: 16, QueueTTL: time.Hour, PlaceWithin: 2 * time.Minute,
			SessionIdle: 7 * day, SessionMax: 30 * day,
		},
		Sandbox: Sandbox{
			MemoryBytes: gib, CPUMillis: 2000, PIDs: 512, DiskBytes: 4 * gib,
			ExecTimeout: 5 * time.Minute, OutputBytes: mib,
		},
		Lease:     Lease{AuthorityTTL: 15 * time.Second, Retention: 10 * time.Minute},
		Approvals: Approvals{TTL: 10 * time.Minute, OnDenied: DeniedContinues},
	}
	switch name {
	case "personal":
	case "coding":
		p.Placement = "runner"
		l := &p.Default.Limits
		l.MaxModelCalls, l.MaxToolCalls, l.MaxCorrections = 60, 200, 8
		l.MaxTokens, l.MaxCostMicroUSD, l.MaxWall = 2_000_000, 5_000_000, time.Hour
	case "enterprise":
		p.NeverApprove = runtimev1.Effect_EFFECT_OUTBOUND
		p.Default.Lease.Retention = 2 * time.Minute
		p.Default.Limits.SessionIdle, p.Default.Limits.SessionMax = 8*time.Hour, day
		p.Ceiling.Limits.SessionIdle, p.Ceiling.Limits.SessionMax = 7*day, 30*day
		p.Ceiling.Approvals.TTL = day
	default:
		return Profile{}, false
	}
	return p, true
}

// ceiling is the most that any definition may ask for; a profile may have less.
var ceiling = Agent{
	Model: Model{MaxOutputTokens: 1 << 17},
	Limits: Limits{
		MaxModelCalls: 500, MaxToolCalls: 2000, MaxCorrections: 64, MaxTokens: 20_000_000,
		MaxCostMicroUSD: 100_000_000, MaxWall: day, MaxResultBytes: int32(mib),
		MaxQueued: 1000, QueueTTL: 7 * day, PlaceWithin: day, SessionIdle: 90 * day, SessionMax: 365 * day,
	},
	Sandbox: Sandbox{
		MemoryBytes: 256 * gib, CPUMillis: 256_000, PIDs: 32_768, DiskBytes: 1024 * gib,
		ExecTimeout: 6 * time.Hour, OutputBytes: 16 * mib,
	},
	Lease:     Lease{AuthorityTTL: time.Minute, Retention: time.Hour},
	Approvals: Approvals{TTL: 7 * day},
}

// minAuthorityTTL leaves room for three renewals over a slow network.
const minAuthorityTTL = 500 * time.Millisecond

package owner

import (
	"cmp"
	"slices"

	"bivouac/edge/device"
	"bivouac/edge/protocol/runnerv1"
)

// Policy is a read edge.hcl.
type Policy struct {
	// Slots is how many turns may run at once in sandboxes; 0 refuses turns.
	Slots int
	// Broker, host:port, replaces the address that the server gives, for machines
	// that reach the broker another way. The broker's certificate is still checked.
	Broker     string
	Folders    []device.Folder
	Toolchains []Toolchain
	Caches     []Cache
	SecondKeys []SecondKey
	// RefuseEgress lets no sandbox read packages, whatever its agent names: turns that
	// name registries do not come here. In the file it is package_egress = false.
	RefuseEgress bool
	Limits       Limits
	Quota        Quota
	// Cgroup is a folder below each cgroup hierarchy in which this runner may make
	// groups, for one that is not root; empty: its own place.
	Cgroup string
}

// Toolchain is a host path that sandboxed code sees, read-only, at the same place.
type Toolchain struct {
	Name string
	Path string
}

// Limits are upper bounds of one attempt; zero leaves the server's.
type Limits struct {
	MemoryBytes int64
	CPUMillis   int64
	PIDs        int32
	DiskBytes   int64
}

// Quota bounds what this machine does for all who may use it, beside slots; zero
// bounds nothing.
type Quota struct {
	// ActiveActions are device actions at once.
	ActiveActions int32
	// TokensPerDay of turns here, on a day of UTC. The server counts them.
	TokensPerDay int64
}

// Default allows sandboxed turns, one at a time, and nothing on the machine.
func Default() Policy { return Policy{Slots: 1} }

// ToolchainNames are advertised to the server, sorted.
func (p Policy) ToolchainNames() []string {
	var out []string
	for _, t := range p.Toolchains {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return out
}

// Narrow lowers what the server asked for to what the owner allows.
func (l Limits) Narrow(asked *runnerv1.SandboxLimits) *runnerv1.SandboxLimits {
	if asked == nil {
		asked = &runnerv1.SandboxLimits{}
	}
	return &runnerv1.SandboxLimits{
		MemoryBytes:   lower(asked.MemoryBytes, l.MemoryBytes),
		CpuMillis:     lower(asked.CpuMillis, l.CPUMillis),
		Pids:          lower(asked.Pids, l.PIDs),
		DiskBytes:     lower(asked.DiskBytes, l.DiskBytes),
		ExecTimeoutMs: asked.ExecTimeoutMs,
		OutputBytes:   asked.OutputBytes,
	}
}

// lower is the smaller of two bounds, where zero is no bound.
func lower[T cmp.Ordered](a, b T) T {
	var none T
	if a == none {
		return b
	}
	if b == none {
		return a
	}
	return min(a, b)
}

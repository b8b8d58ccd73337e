package protocol

// Kinds of work that an offer names.
const (
	KindTurn   = "agent-turn"
	KindAction = "agent-action"
)

// Boundary classes of sandboxes, as machines state them and agents ask for them.
const (
	BoundaryProcess   = "process"
	BoundaryContainer = "container"
	BoundaryGVisor    = "gvisor"
	BoundaryMicroVM   = "microvm"
)

// Boundaries are all classes, weakest first: nothing weaker than asked is ever
// chosen (INV-11).
var Boundaries = []string{BoundaryProcess, BoundaryContainer, BoundaryGVisor, BoundaryMicroVM}

// Classes of resource limits.
const (
	LimitsCgroup = "cgroup" // memory, CPU and processes, seen to kill
	LimitsRlimit = "rlimit" // per process only
)

// Trust in the code that an attempt executes. Untrusted code needs LimitsCgroup.
const (
	TrustTrusted   = "trusted"
	TrustUntrusted = "untrusted"
)

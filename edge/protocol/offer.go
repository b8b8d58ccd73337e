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

// Adapters by which a worker carries a turn out.
const (
	AdapterNative   = "native"   // the model/tool loop
	AdapterScripted = "scripted" // steps that its script fixes
)

// Adapters are those of this build, sorted: a runner advertises them, a
// definition may ask for one.
var Adapters = []string{AdapterNative, AdapterScripted}

// WorkerProtocol is the version of the contract between worker and supervisor that
// this build speaks. A server's record says which ones it gives turns.
const WorkerProtocol = 1

// Trust in the code that an attempt executes. Untrusted code needs LimitsCgroup.
const (
	TrustTrusted   = "trusted"
	TrustUntrusted = "untrusted"
)

// NotRunYet is what a machine that has joined says in place of what its sandbox
// enforces, until bivouac-edge runs there for the first time.
const NotRunYet = "bivouac-edge does not run yet"

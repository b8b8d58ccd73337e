package policy

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Agent is one version of an agent definition, as its HCL says it. It is
// immutable by the digest of its source.
type Agent struct {
	Name      string
	Profile   string // "personal", "coding" or "enterprise"
	Placement string // "service" or "runner"
	// Allocation is AllocationOwn where each turn is a task of its own for the scheduler
	// that runs its runner; empty: it shares the runner's.
	Allocation   string `json:",omitempty"`
	Instructions string
	Model        Model
	DataBoundary string
	// Trust of the code a runner-placed turn executes: "untrusted" (default) or
	// "trusted". Untrusted code needs cgroup limits.
	Trust    string
	Adapter  string // of protocol.Adapters; native by default
	Boundary string // weakest sandbox class: "process" (default), …
	Runners  []string
	// Egress names destinations of the broker that sandboxed code may read packages
	// from; none: it has no network at all.
	Egress    []string `json:",omitempty"`
	Tools     []Tool
	Limits    Limits
	Sandbox   Sandbox
	Lease     Lease
	Approvals Approvals
}

// What allocation may say.
const (
	AllocationShared = "shared"
	AllocationOwn    = "own"
)

// allocationWithin is place_within of a definition with allocations of its own that says
// none: another scheduler may be asked more than once.
const allocationWithin = 15 * time.Minute

// Model names a route of the broker.
type Model struct {
	Route           string
	MaxOutputTokens int32
}

// Tool is one tool of a definition.
type Tool struct {
	// Ref is "files.read" for a device action, "http:<name>", "mcp:<name>" or
	// "ssh:<name>" for a gateway tool, "sandbox.shell" for a sandbox tool.
	Ref         string
	Alias       string
	Description string
	Placement   runtimev1.Placement
	Effect      runtimev1.Effect
	Recovery    runtimev1.Recovery
	// Approval is "always", "never" or "" for the rule of the effect class.
	Approval     string
	InputSchema  string // canonical JSON
	OutputSchema string
	HTTP         *HTTPTool
	MCP          *MCPTool `json:",omitempty"`
	SSH          *SSHTool `json:",omitempty"`
	// Inspector of an inspectable sandbox tool: a command; empty without one.
	Inspector string `json:",omitempty"`
}

// HTTPTool is the request of a gateway tool.
type HTTPTool struct {
	Destination       string
	Method            string
	Path              string
	Credential        string
	Body              []string
	IdempotencyHeader string
	Timeout           time.Duration
	// Lookup of an inspectable tool; nil without one.
	Lookup *Lookup `json:",omitempty"`
}

// Lookup is the request by which the broker finds out whether a call happened: a
// GET on the tool's destination, with its credential. A 2xx whose body contains
// Contains says that it did, 404 and 410 say that it did not, and so does a 2xx
// without Contains.
type Lookup struct {
	Path     string
	Contains string `json:",omitempty"`
}

// KeyPlaceholder stands for the call's idempotency key in a look-up.
const KeyPlaceholder = "idempotency_key"

// Limits bound a turn and its session.
type Limits struct {
	MaxModelCalls   int32
	MaxToolCalls    int32
	MaxCorrections  int32
	MaxTokens       int64
	MaxCostMicroUSD int64
	MaxWall         time.Duration
	MaxResultBytes  int32
	MaxQueued       int           // turns waiting in one session
	QueueTTL        time.Duration // a queued turn is cancelled after it
	PlaceWithin     time.Duration // RECEIVED without a runner fails after it
	SessionIdle     time.Duration
	SessionMax      time.Duration
}

// Sandbox limits a runner-placed turn.
type Sandbox struct {
	MemoryBytes int64
	CPUMillis   int64
	PIDs        int32
	DiskBytes   int64
	ExecTimeout time.Duration
	OutputBytes int64
}

// Lease holds the two durations of every attempt of this agent.
type Lease struct {
	AuthorityTTL time.Duration
	Retention    time.Duration
}

// What follows from a denied call: the model is told and goes on, or the turn fails.
const (
	DeniedContinues = "continue"
	DeniedFails     = "fail"
)

// Approvals of this agent.
type Approvals struct {
	TTL time.Duration
	// OnDenied is DeniedContinues or DeniedFails. It is the same for a denial at the
	// server and for one of the owner of a machine, and for silence of either.
	OnDenied string
}

// Registry is a destination of the broker that sandboxed code may read packages
// from, and how projects know it.
type Registry struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	URL      string `json:"url"`
}

// Given is a grant and the credentials that it gives.
type Given struct {
	Grant       protocol.GrantID `json:"grant"`
	Credentials []string         `json:"credentials,omitempty"`
}

// Snapshot is what activation froze for one turn. Later changes may narrow a
// running turn, never widen it. INV-10.
type Snapshot struct {
	Agent       Agent             `json:"agent"`
	AgentDigest string            `json:"agent_digest"`
	Tools       []*runtimev1.Tool `json:"tools"` // the accepted set
	Generation  int64             `json:"generation"`
	// Grant is the turn's own: it ends with it, and models are asked under it.
	Grant protocol.GrantID `json:"grant,omitempty"`
	// Grants are all that were in force, the newest first, Grant among them: an
	// action that needs a credential goes out under the newest that gives it.
	Grants       []Given `json:"grants,omitempty"`
	DataBoundary string  `json:"data_boundary"`
	// Egress is what the broker said of the definition's registries. INV-10.
	Egress       []Registry `json:"egress,omitempty"`
	PolicyDigest string     `json:"policy_digest"`
	// Broker pool and boot that the budget slice was cut for.
	BrokerPool string `json:"broker_pool"`
	BrokerBoot string `json:"broker_boot"`
}

package engine

import (
	"context"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// Broker is what the engine asks of the broker. The real one is a Connect
// client over mutual TLS (package brokerlink); in tests it is a small broker in process.
// Every method may block: the engine calls it from ops and cleanup only.
type Broker interface {
	Models
	Calls
	Slices
	Authority
}

// Models are the broker's routes to providers.
type Models interface {
	Describe(ctx context.Context) (*brokerv1.DescribeResponse, error)
	// Reach says what an agent could reach now.
	Reach(ctx context.Context, req *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error)
	// CallModel streams text deltas to onDelta and returns the whole answer.
	CallModel(ctx context.Context, req *brokerv1.CallModelRequest, onDelta func(string)) (*runtimev1.ModelDone, error)
}

// Calls are gateway tools, and what the call log knows of them.
type Calls interface {
	Invoke(ctx context.Context, req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error)
	LookupAction(ctx context.Context, id protocol.ActionID) (*brokerv1.LookupActionResponse, error)
}

// Slices are the parts of budgets that the broker draws down.
type Slices interface {
	// Usage says what was drawn from slices.
	Usage(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error)
	// CloseSlices ends slices: nothing is drawn from them any more.
	CloseSlices(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error)
}

// Authority is grants, and the proof of what was taken back.
type Authority interface {
	CreateGrant(ctx context.Context, req *brokerv1.CreateGrantRequest) ([]byte, error)
	RevokeGrant(ctx context.Context, id protocol.GrantID) (*brokerv1.RevokeGrantResponse, error)
	// RotateGrant makes another secret part of a grant, SettleRotation ends the older.
	RotateGrant(ctx context.Context, id protocol.GrantID, rotation string) (sealed []byte, err error)
	SettleRotation(ctx context.Context, id protocol.GrantID, rotation string) error
	Probe(ctx context.Context, capability string, grant protocol.GrantID) (*brokerv1.ProbeResponse, error)
	SignReceipt(ctx context.Context, receipt []byte) (string, error)
	Ledgers
}

// Ledgers are signed where they follow what was signed before.
type Ledgers interface {
	LastHead(ctx context.Context, tenant protocol.TenantID) (*brokerv1.LastHeadResponse, error)
	SignHead(ctx context.Context, req *brokerv1.SignHeadRequest) (string, error)
}

// Hosts knows the nodes of runners that came by a workload identity. What it says takes a
// runner out of the choice for what is new, and ends nothing. It answers from memory.
type Hosts interface {
	Standing(workload string) placement.Host
	// Rooms are what each node has for one turn on which a runner of a tenant runs, or may;
	// none: that is not known.
	Rooms(tenant protocol.TenantID) []placement.Resources
	// Absent says why a principal, by its id or name, has no runner beside those that
	// enrolled, where it is to have more; the zero value: nothing is missing.
	Absent(tenant protocol.TenantID, enrolled []string, principal ...string) placement.Said
}

// Allocations starts supervisors of attempts as tasks of the scheduler that runs their
// runners. List, Start, Stop and Explain may block: they are called outside of ticks and
// transactions alone.
type Allocations interface {
	// Most of them at once.
	Most() int
	// List says which there are of this deployment, and of no other.
	List(ctx context.Context) ([]Allocated, error)
	// Start asks for one whose job must not exist yet. One that exists and is the same
	// attempt's is taken; unavailable is that nobody knows what became of the request.
	Start(ctx context.Context, a Allocation) error
	// Stop ends one, and removes one that has ended.
	Stop(ctx context.Context, a Allocated) error
	// Explain says in a sentence what has become of a job on a runner's node.
	Explain(ctx context.Context, workload, job string) (placement.Said, error)
	// Word is how the task of a job on a runner's node ended; over: it has, or there is no
	// such job.
	Word(ctx context.Context, workload, job string) (said string, over bool, err error)
	// Hints counts what may have changed a list, and rings the bell for it.
	Hints() uint64
	Bell() op.Bell
}

// Allocation is what a supervisor needs to run in.
type Allocation struct {
	Job      string
	Attempt  protocol.AttemptID
	Workload string // of the runner: its node is where
	// What the sandboxes of the attempt may use.
	CPUMillis, MemoryBytes, DiskBytes int64
	// Longest is when the task is ended at the latest, should nobody else do it.
	Longest time.Duration
}

// Allocated is one job as it was listed.
type Allocated struct {
	Job   string
	Where string // the adapter's own: in which part of the other scheduler it is
	// Waits: there is no room for it. Ended: nothing of it runs or will. Stopped: somebody
	// asked for its end.
	Waits, Ended, Stopped bool
	Said                  placement.Said
}

// Scheduler decides which runner is offered an attempt. The embedded one offers
// straight to connected runners with free slots, those that Nomad runs among them.
type Scheduler interface {
	// Place picks for each attempt a runner, or says why there is none.
	Place(attempts []execution.Attempt, fleet Fleet) []Decision
}

// Fleet and Decision are placement's.
type (
	Fleet    = placement.Fleet
	Decision = placement.Decision
)

package edge

import (
	"context"

	"connectrpc.com/connect"

	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// Spawner starts supervisors, one process an attempt, and reaches them.
type Spawner interface {
	// Start begins a supervisor in the attempt's directory. It outlives the
	// daemon, and finds in the directory what an earlier one left.
	Start(ctx context.Context, a state.Attempt) error
	// Client speaks to the supervisor's socket, which need not be there yet.
	Client(a state.Attempt) connect.HTTPClient
	// Kill ends a supervisor that does not answer, with everything it started.
	Kill(ctx context.Context, a state.Attempt) error
	// Reap takes note of supervisors that have ended.
	Reap()
}

// JobStatus is the command that shows an operator of Nomad the job of an attempt,
// whatever namespace it is in.
func JobStatus(job string) string { return "nomad job status -namespace '*' " + job }

// supervisorOf is the supervisor's contract over its socket.
func supervisorOf(s Spawner, a state.Attempt) supervisev1connect.SuperviseServiceClient {
	return supervisev1connect.NewSuperviseServiceClient(s.Client(a), "http://supervisor")
}

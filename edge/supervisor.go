package edge

import (
	"context"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
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

// supervisorOf is the supervisor's contract over its socket.
func supervisorOf(s Spawner, a state.Attempt) supervisev1connect.SuperviseServiceClient {
	return supervisev1connect.NewSuperviseServiceClient(s.Client(a), "http://supervisor")
}

// InProcess is a Spawner whose supervisors live in this process: start makes one
// and returns how to reach it, kill ends it. For the harness and tests.
func InProcess(start func(ctx context.Context, a state.Attempt) (connect.HTTPClient, error), kill func(a state.Attempt)) Spawner {
	return &inProcess{start: start, kill: kill, clients: map[protocol.AttemptID]connect.HTTPClient{}}
}

type inProcess struct {
	start func(context.Context, state.Attempt) (connect.HTTPClient, error)
	kill  func(state.Attempt)

	mu      sync.Mutex // guards clients
	clients map[protocol.AttemptID]connect.HTTPClient
}

func (p *inProcess) Start(ctx context.Context, a state.Attempt) error {
	c, err := p.start(ctx, a)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[a.ID] = c
	return nil
}

func (p *inProcess) Client(a state.Attempt) connect.HTTPClient {
	return doFunc(func(req *http.Request) (*http.Response, error) {
		p.mu.Lock()
		c := p.clients[a.ID]
		p.mu.Unlock()
		if c == nil {
			return nil, errNoSupervisor
		}
		return c.Do(req)
	})
}

func (p *inProcess) Kill(_ context.Context, a state.Attempt) error {
	p.kill(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clients, a.ID)
	return nil
}

func (p *inProcess) Reap() {}

// doFunc is a connect.HTTPClient.
type doFunc func(*http.Request) (*http.Response, error)

func (f doFunc) Do(req *http.Request) (*http.Response, error) { return f(req) }

// errNoSupervisor is what a client of a supervisor that was never started says.
var errNoSupervisor = protocol.Errorf(protocol.CodeUnavailable, "no supervisor runs for this attempt")

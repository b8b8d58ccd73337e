// Package edgetest has a machine's supervisors in the process of its daemon, for tests
// and the harness. They outlive a daemon as processes do, and end when they are killed.
// It refuses to know what a supervisor does; it is an edge.Spawner and imports no
// daemon, whose own tests use it.
package edgetest

import (
	"context"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// Supervisors is an edge.Spawner.
type Supervisors struct {
	start func(context.Context, state.Attempt) (connect.HTTPClient, error)
	kill  func(state.Attempt)

	mu      sync.Mutex // guards clients
	clients map[protocol.AttemptID]connect.HTTPClient
}

// InProcess has start make a supervisor and say how to reach it, and kill end it.
func InProcess(start func(ctx context.Context, a state.Attempt) (connect.HTTPClient, error), kill func(a state.Attempt)) *Supervisors {
	return &Supervisors{start: start, kill: kill, clients: map[protocol.AttemptID]connect.HTTPClient{}}
}

// Start is edge.Spawner's, as are the other methods.
func (p *Supervisors) Start(ctx context.Context, a state.Attempt) error {
	c, err := p.start(ctx, a)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[a.ID] = c
	return nil
}

func (p *Supervisors) Client(a state.Attempt) connect.HTTPClient {
	return doFunc(func(req *http.Request) (*http.Response, error) {
		p.mu.Lock()
		c := p.clients[a.ID]
		p.mu.Unlock()
		if c == nil {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "no supervisor runs for this attempt")
		}
		return c.Do(req)
	})
}

func (p *Supervisors) Kill(_ context.Context, a state.Attempt) error {
	p.kill(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clients, a.ID)
	return nil
}

func (p *Supervisors) Reap() {}

// doFunc is a connect.HTTPClient.
type doFunc func(*http.Request) (*http.Response, error)

func (f doFunc) Do(req *http.Request) (*http.Response, error) { return f(req) }

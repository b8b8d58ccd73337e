package vaultpolicy

import (
	"context"
	"sync"

	"bivouac/edge/protocol"
)

// endings are the grants that are being ended in the server now: one end at a time for
// each. Whoever revokes a grant, the servers' word that it was revoked and what is tried
// again come at the same time, and a server tells the second of two who end one token
// that there is none. INV-13.
type endings struct {
	mu    sync.Mutex
	under map[protocol.GrantID]*ending
}

// ending is one end under way. done is closed when err is its outcome; cut says that
// whoever made it went away.
type ending struct {
	done chan struct{}
	err  error
	cut  bool
}

func newEndings() *endings { return &endings{under: map[protocol.GrantID]*ending{}} }

// one runs end, or waits for the one that is under way: its failure is everybody's. After
// its success, and where whoever made it went away, end looks itself what there is to do.
func (x *endings) one(ctx context.Context, id protocol.GrantID, end func() error) error {
	for {
		x.mu.Lock()
		now, busy := x.under[id]
		if !busy {
			now = &ending{done: make(chan struct{})}
			x.under[id] = now
		}
		x.mu.Unlock()
		if !busy {
			return x.run(ctx, id, now, end)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-now.done:
		}
		if now.err != nil && !now.cut {
			return now.err
		}
	}
}

func (x *endings) run(ctx context.Context, id protocol.GrantID, now *ending, end func() error) error {
	defer func() {
		x.mu.Lock()
		delete(x.under, id)
		x.mu.Unlock()
		close(now.done)
	}()
	now.cut = true // should it not come back
	now.err = end()
	now.cut = ctx.Err() != nil
	return now.err
}

package engine

import (
	"sync"

	"bivouac/edge/protocol"
)

// calls are the gateway actions that this incarnation has under way: from before
// the commit that marks them as dispatched until their outcome is applied. A
// dispatched action that is not here was left by an earlier process.
type calls struct {
	mu  sync.Mutex // guards ids
	ids map[protocol.ActionID]bool
}

func newCalls() *calls { return &calls{ids: map[protocol.ActionID]bool{}} }

func (c *calls) keep(id protocol.ActionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[id] = true
}

func (c *calls) forget(id protocol.ActionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id)
}

func (c *calls) has(id protocol.ActionID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

package engine

import (
	"maps"
	"slices"
	"sync"

	"bivouac/edge/protocol"
)

// due are the turns whose model call waits for its op: a hint that saves the
// model tick from reading every active turn after every commit. What it misses,
// the tick's own scan finds.
type due struct {
	bell bell

	mu    sync.Mutex // guards turns
	turns map[protocol.TurnID]bool
}

func newDue() *due { return &due{bell: newBell(), turns: map[protocol.TurnID]bool{}} }

func (d *due) add(id protocol.TurnID) {
	d.mu.Lock()
	d.turns[id] = true
	d.mu.Unlock()
	d.bell.ring()
}

func (d *due) drop(id protocol.TurnID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.turns, id)
}

// list is in a stable order: the calls of several turns are started, and their
// capabilities named, the same way in every run of a seed.
func (d *due) list() []protocol.TurnID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.turns))
}

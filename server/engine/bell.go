package engine

import (
	"sync"

	"bivouac/edge/protocol"
)

// bell wakes one tick from inside the engine. It holds one wake-up: more would
// say nothing more.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

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

func (d *due) list() []protocol.TurnID {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]protocol.TurnID, 0, len(d.turns))
	for id := range d.turns {
		out = append(out, id)
	}
	return out
}

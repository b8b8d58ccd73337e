package engine

import (
	"maps"
	"slices"
	"sync"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
)

// due are the turns whose model call waits for its op, each with that call: a
// hint that saves the model tick from reading every active turn after every
// commit. What it misses, the tick's own scan finds.
type due struct {
	bell op.Bell

	mu    sync.Mutex // guards calls
	calls map[protocol.TurnID]protocol.CallID
}

func newDue() *due { return &due{bell: op.NewBell(), calls: map[protocol.TurnID]protocol.CallID{}} }

func (d *due) add(id protocol.TurnID, call protocol.CallID) {
	d.mu.Lock()
	d.calls[id] = call
	d.mu.Unlock()
	d.bell.Ring()
}

// drop forgets one call; a later one of the same turn stays.
func (d *due) drop(id protocol.TurnID, call protocol.CallID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls[id] == call {
		delete(d.calls, id)
	}
}

type dueCall struct {
	turn protocol.TurnID
	call protocol.CallID
}

// list is in a stable order: the calls of several turns are started, and their
// capabilities named, the same way in every run of a seed.
func (d *due) list() []dueCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]dueCall, 0, len(d.calls))
	for _, id := range slices.Sorted(maps.Keys(d.calls)) {
		list = append(list, dueCall{id, d.calls[id]})
	}
	return list
}

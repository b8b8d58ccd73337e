package sandbox

import (
	"context"

	"bivouac/edge/protocol"
)

// State of an attempt's sandboxes as a whole.
type State string

// States. What was killed stays so: a new group is another attempt's.
const (
	StateRunning State = "running"
	StateFrozen  State = "frozen" // stopped, and can go on
	StateKilled  State = "killed" // no process is left
	StateClosed  State = "closed" // nothing of it is left
)

// stepNext is the next state on the way from one to another. Absent pairs are
// refused. INV-2: nothing leads out of killed but its removal.
var stepNext = map[State]map[State]State{
	StateRunning: {StateRunning: StateRunning, StateFrozen: StateFrozen, StateKilled: StateKilled, StateClosed: StateKilled},
	StateFrozen:  {StateRunning: StateRunning, StateFrozen: StateFrozen, StateKilled: StateKilled, StateClosed: StateKilled},
	StateKilled:  {StateKilled: StateKilled, StateClosed: StateClosed},
	StateClosed:  {StateKilled: StateClosed, StateClosed: StateClosed},
}

// Step makes one step from the state at towards the state want and returns where
// it came. Its caller journals that before the next one. A step that was made
// before, by a process that could not say so any more, is made again: a group
// takes each twice.
func Step(ctx context.Context, at, want State, g Group) (State, error) {
	next, ok := stepNext[at][want]
	if !ok {
		return at, protocol.Errorf(protocol.CodeFailedPrecondition, "sandboxes that are %s cannot become %s", at, want)
	}
	if next == at {
		return at, nil
	}
	var err error
	switch next {
	case StateRunning:
		err = g.Thaw(ctx)
	case StateFrozen:
		err = g.Freeze(ctx)
	case StateKilled:
		err = g.Kill(ctx)
	case StateClosed:
		err = g.Close(ctx)
	}
	if err != nil {
		return at, err
	}
	return next, nil
}

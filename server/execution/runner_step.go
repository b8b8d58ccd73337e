package execution

import (
	"slices"
	"time"

	"bivouac/server/steptable"
)

// RunnerEvent moves a runner.
type RunnerEvent string

const (
	RunnerRevoke RunnerEvent = "revoke" // by an admin or its owner, at the server
	RunnerLeave  RunnerEvent = "leave"  // by its owner, at the machine
)

// RunnerNext is the whole life of a runner. A machine that comes back makes a
// new key and is another runner. INV-2.
var RunnerNext = map[RunnerState]map[RunnerEvent]RunnerState{
	RunnerActive: {
		RunnerRevoke: RunnerRevoked,
		RunnerLeave:  RunnerLeft,
	},
	RunnerRevoked: {},
	RunnerLeft:    {},
}

// RunnerStates and RunnerEvents are all of them.
var (
	RunnerStates = []RunnerState{RunnerActive, RunnerRevoked, RunnerLeft}
	RunnerEvents = []RunnerEvent{RunnerRevoke, RunnerLeave}
)

// Terminal reports a state without exits. INV-2.
func (s RunnerState) Terminal() bool { return s != RunnerActive }

// Step makes one legal step.
func (r Runner) Step(ev RunnerEvent, now time.Time) (Runner, error) {
	to, err := steptable.Next("runner "+r.ID.String(), RunnerNext, r.State, ev)
	if err != nil {
		return r, err
	}
	r.State, r.LastSeenAt = to, now
	return r, nil
}

// ActionTurn is the binding action that allows whole turns in a sandbox.
const ActionTurn = "turn"

// Allows reports that a binding is in force for one action. An empty list
// allows every action that the runner's owner allows.
func (b Binding) Allows(action string) bool {
	return b.RemovedAt.IsZero() && (len(b.Actions) == 0 || slices.Contains(b.Actions, action))
}

// Attached reports a connection whose replica still holds it.
func (c Connection) Attached(now time.Time) bool {
	return !c.Runner.IsZero() && now.Before(c.ExpiresAt)
}

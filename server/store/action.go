package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

func (tx *Tx) InsertAction(a session.Action) error {
	panic("store: not built")
}

func (tx *Tx) Action(id protocol.ActionID) (session.Action, error) {
	panic("store: not built")
}

func (tx *Tx) ActionsOfTurn(t protocol.TurnID) ([]session.Action, error) {
	panic("store: not built")
}

// ActionOfAttempt is the device action that an attempt carries out.
func (tx *Tx) ActionOfAttempt(id protocol.AttemptID) (session.Action, error) {
	panic("store: not built")
}

// ActionsIn returns actions in one of the states, oldest first.
func (tx *Tx) ActionsIn(limit int, states ...session.ActionState) ([]session.Action, error) {
	panic("store: not built")
}

// SaveAction writes every mutable column, guarded by prior state and fence. INV-3.
func (tx *Tx) SaveAction(a session.Action, prior session.ActionState, fence protocol.Fence) error {
	panic("store: not built")
}

// UnresolvedUnknown returns the unresolved unknown action on a resource key of a principal. INV-5.
func (tx *Tx) UnresolvedUnknown(principal protocol.PrincipalID, resourceKey string) (session.Action, error) {
	panic("store: not built")
}

// Unknowns is the unknown inbox of the caller.
func (tx *Tx) Unknowns(includeResolved bool) ([]session.Action, error) {
	panic("store: not built")
}

// ResolveUnknown appends a resolution once; it changes no state.
func (tx *Tx) ResolveUnknown(id protocol.ActionID, resolution, note string) (session.Action, error) {
	panic("store: not built")
}

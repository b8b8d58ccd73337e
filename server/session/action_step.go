package session

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/steptable"
)

// ActionEvent moves an action.
type ActionEvent string

const (
	// ActionAsk: the intent waits for a person.
	ActionAsk ActionEvent = "ask"
	// ActionDispatch: it left; from here its outcome must be learned. INV-4.
	ActionDispatch ActionEvent = "dispatch"
	// ActionRedispatch: an idempotent one is sent again under the same key. INV-5.
	ActionRedispatch ActionEvent = "redispatch"
	ActionSucceed    ActionEvent = "succeed"
	ActionFail       ActionEvent = "fail"
	ActionDeny       ActionEvent = "deny"
	// ActionSupersede: approved; the action that consumed the approval runs.
	ActionSupersede ActionEvent = "supersede"
	// ActionCancel: it is known that it never began.
	ActionCancel ActionEvent = "cancel"
	// ActionDoubt: it may or may not have happened.
	ActionDoubt ActionEvent = "doubt"
	// ActionGiveUp: no evidence is left, or the reconcile deadline passed.
	ActionGiveUp ActionEvent = "give_up"
)

// ActionNext is the whole life of an action. UNKNOWN is reached only through
// RECONCILING, and a terminal state has no exits (INV-2, INV-5).
var ActionNext = map[ActionState]map[ActionEvent]ActionState{
	Intended: {
		ActionAsk:      AwaitingApproval,
		ActionDispatch: Dispatched,
		ActionDeny:     Denied,
		ActionFail:     ActionFailed, // refused before it left, such as not_placed
		ActionCancel:   ActionCancelled,
	},
	AwaitingApproval: {
		ActionSupersede: Superseded,
		ActionDeny:      Denied, // by a person, or by expiry
		ActionCancel:    ActionCancelled,
	},
	Dispatched: {
		ActionSucceed: Succeeded,
		ActionFail:    ActionFailed,
		ActionDeny:    Denied, // the machine's owner said no
		ActionCancel:  ActionCancelled,
		ActionDoubt:   Reconciling,
	},
	Reconciling: {
		ActionRedispatch: Dispatched,
		ActionSucceed:    Succeeded,
		ActionFail:       ActionFailed,
		ActionDeny:       Denied,
		ActionCancel:     ActionCancelled,
		ActionGiveUp:     ActionUnknown,
	},
	Succeeded:       {},
	ActionFailed:    {},
	Denied:          {},
	Superseded:      {},
	ActionCancelled: {},
	ActionUnknown:   {},
}

// ActionStates and ActionEvents are all of them.
var (
	ActionStates = []ActionState{Intended, AwaitingApproval, Dispatched, Reconciling, Succeeded,
		ActionFailed, Denied, Superseded, ActionCancelled, ActionUnknown}
	ActionEvents = []ActionEvent{ActionAsk, ActionDispatch, ActionRedispatch, ActionSucceed, ActionFail,
		ActionDeny, ActionSupersede, ActionCancel, ActionDoubt, ActionGiveUp}
)

// Step makes one legal step. An action that is not idempotent is never
// dispatched a second time (INV-5).
func (a Action) Step(ev ActionEvent, now time.Time) (Action, error) {
	to, err := steptable.Next("action "+a.ID.String(), ActionNext, a.State, ev)
	if err != nil {
		return a, err
	}
	if ev == ActionRedispatch && a.Recovery != runtimev1.Recovery_RECOVERY_IDEMPOTENT {
		return a, protocol.Errorf(protocol.CodeOutcomeUnknown,
			"action %s may have happened and is not idempotent: it is not sent again", a.ID)
	}
	a.State = to
	switch {
	case ev == ActionDispatch:
		a.DispatchedAt = now
	case to.Terminal():
		a.OutcomeAt = now
	}
	return a, nil
}

// Unresolved reports an unknown outcome that no person has decided on; its
// resource key is refused meanwhile (INV-5).
func (a Action) Unresolved() bool { return a.State == ActionUnknown && a.Resolution == "" }

// EndsTurn reports an unknown outcome that must end the turn UNKNOWN: what left
// the machine or destroyed something is not to be guessed about.
func (a Action) EndsTurn() bool {
	return a.State == ActionUnknown && a.Effect >= runtimev1.Effect_EFFECT_OUTBOUND
}

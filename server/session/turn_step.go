package session

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/steptable"
)

// TurnEvent moves a turn.
type TurnEvent string

const (
	// TurnActivate: the turn became the session's active one. INV-1.
	TurnActivate TurnEvent = "activate"
	// TurnRun: the first model call is on its way, or the runner began.
	TurnRun TurnEvent = "run"
	// TurnAct: an answer asked for a tool that the engine dispatches.
	TurnAct TurnEvent = "act"
	// TurnDispatch: the action whose intent is durable was dispatched. INV-4.
	TurnDispatch TurnEvent = "dispatch"
	// TurnAskApproval: the action waits for a person.
	TurnAskApproval TurnEvent = "ask_approval"
	// TurnApprove: a new action consumed the approval. INV-6.
	TurnApprove TurnEvent = "approve"
	// TurnRefuse: the call has its result without having been dispatched: denied,
	// expired, refused; the model goes on.
	TurnRefuse TurnEvent = "refuse"
	// TurnSettle: the action's result is known, good or bad.
	TurnSettle TurnEvent = "settle"
	// TurnNextCall: the call has its result and another call of the same answer
	// waits; or a preparing action (files.digest) ended and its call waits.
	TurnNextCall TurnEvent = "next_call"
	// TurnDoubt: the outcome of the action, or the runner, is not known.
	TurnDoubt TurnEvent = "doubt"
	// TurnReconcile: evidence settled the doubt.
	TurnReconcile TurnEvent = "reconcile"
	// TurnReplace: the runner's attempt was interrupted; one new attempt starts
	// from the last checkpoint.
	TurnReplace TurnEvent = "replace"
	// TurnContinue: the decision about a runner's call, and what came of it, is part
	// of the transcript; a new attempt goes on from there.
	TurnContinue TurnEvent = "continue"
	// TurnComplete, TurnFail, TurnCancel and TurnGiveUp end it. TurnGiveUp says
	// that an effect may have happened, and nothing will ever tell.
	TurnComplete TurnEvent = "complete"
	TurnFail     TurnEvent = "fail"
	TurnCancel   TurnEvent = "cancel"
	TurnGiveUp   TurnEvent = "give_up"
)

// TurnNext is the whole life of a turn. Absent pairs are illegal; terminal
// states have no exits (INV-2). A runner-placed turn is RUNNING_MODEL while its
// attempt runs and takes the action states when the engine dispatches for it.
var TurnNext = map[TurnState]map[TurnEvent]TurnState{
	Queued: {
		TurnActivate: Received,
		TurnCancel:   Cancelled, // by the user or its queue deadline
	},
	Received: {
		TurnRun:    RunningModel,
		TurnFail:   Failed, // not_placed at its deadline
		TurnCancel: Cancelled,
	},
	RunningModel: {
		TurnAct:      WaitingAction,
		TurnComplete: Completed,
		TurnDoubt:    WaitingReconciliation,
		TurnFail:     Failed,
		TurnCancel:   Cancelled,
	},
	WaitingAction: {
		TurnDispatch:    RunningAction,
		TurnAskApproval: WaitingApproval,
		TurnRefuse:      RunningModel,
		TurnNextCall:    WaitingAction,
		TurnFail:        Failed,
		TurnCancel:      Cancelled,
	},
	WaitingApproval: {
		TurnApprove:  RunningAction,
		TurnRefuse:   RunningModel,
		TurnNextCall: WaitingAction,
		TurnContinue: Received,
		TurnFail:     Failed,
		TurnCancel:   Cancelled,
	},
	RunningAction: {
		TurnSettle:   RunningModel,
		TurnContinue: Received,
		TurnNextCall: WaitingAction,
		TurnDoubt:    WaitingReconciliation,
		TurnFail:     Failed,
		TurnCancel:   Cancelled,
	},
	WaitingReconciliation: {
		TurnReconcile: RunningModel,
		TurnNextCall:  WaitingAction,
		TurnReplace:   Received,
		TurnContinue:  Received,
		TurnFail:      Failed,
		TurnCancel:    Cancelled,
		TurnGiveUp:    Unknown,
	},
	Completed: {},
	Failed:    {},
	Cancelled: {},
	Unknown:   {},
}

// TurnStates and TurnEvents are all of them, in the order of a turn's life.
var (
	TurnStates = []TurnState{Queued, Received, RunningModel, WaitingAction, WaitingApproval,
		RunningAction, WaitingReconciliation, Completed, Failed, Cancelled, Unknown}
	TurnEvents = []TurnEvent{TurnActivate, TurnRun, TurnAct, TurnDispatch, TurnAskApproval,
		TurnApprove, TurnRefuse, TurnSettle, TurnNextCall, TurnDoubt, TurnReconcile, TurnReplace, TurnContinue,
		TurnComplete, TurnFail, TurnCancel, TurnGiveUp}
)

// ReconcileWithin is how long evidence is sought before an outcome is unknown.
const ReconcileWithin = 60 * time.Second

// MaxAttempts of a runner-placed turn: the first, and one from the checkpoint.
const MaxAttempts = 2

// Step makes one legal step and keeps the instants that belong to it. The
// caller appends the events; it saves the turn guarded by the state before.
func (t Turn) Step(ev TurnEvent, now time.Time) (Turn, error) {
	to, err := steptable.Next("turn "+t.ID.String(), TurnNext, t.State, ev)
	if err != nil {
		return t, err
	}
	if ev == TurnReplace && t.Attempts >= MaxAttempts {
		return t, protocol.Errorf(protocol.CodeFailedPrecondition,
			"turn %s had %d attempts: it is not tried again", t.ID, t.Attempts)
	}
	t.State = to
	t.ReconcileDeadline = time.Time{}
	switch {
	case ev == TurnActivate:
		t.ActivatedAt = now
	case ev == TurnDoubt:
		t.ReconcileDeadline = now.Add(ReconcileWithin)
	case to.Terminal():
		t.EndedAt = now
		t.ModelCall = ""
	}
	return t, nil
}

// End makes a terminal step with its stable reason and a sentence for people.
func (t Turn) End(ev TurnEvent, reason, message string, now time.Time) (Turn, error) {
	next, err := t.Step(ev, now)
	if err != nil {
		return t, err
	}
	if !next.State.Terminal() {
		return t, protocol.Errorf(protocol.CodeFailedPrecondition,
			"turn %s cannot end by the step %q", t.ID, ev)
	}
	next.Reason, next.Message = reason, message
	return next, nil
}

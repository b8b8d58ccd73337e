package engine

import (
	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// A runner-placed turn that waits for a person holds no machine: its attempt ends
// as approval_required, with the transcript up to the call and the patch so far.
// After the decision, and after the outcome of what was approved, the result is
// put into the transcript here, and a new attempt goes on from it. INV-6, INV-7.

// park tells the attempt that asked to end. Until it has, its lease brings no
// capability. INV-7.
func (w *turnTx) park(callID string) error {
	a, err := w.tx.Attempt(w.turn.Attempt)
	if err != nil || a.State.Terminal() {
		return err
	}
	w.afterCommit(func() { w.e.leases.disarm(a.ID) })
	return w.e.mail(w.tx, a.Runner, a.ID, &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_ToolAnswer{
		ToolAnswer: &runnerv1.ToolAnswer{AttemptId: a.ID.String(), CallId: callID, Park: true}}})
}

// parked keeps the cursor of an attempt that ended for a question. One that ends
// so without a question was interrupted by itself.
func (w *turnTx) parked(a execution.Attempt, r *runnerv1.Result) error {
	if a.ID != w.turn.Attempt || !w.turn.State.Active() {
		return nil
	}
	if w.turn.State != session.WaitingApproval || a.Reason != string(protocol.CodeApprovalRequired) {
		return w.goOn(a, "its machine gave it up, and nobody was asked")
	}
	subject, _, err := w.pendingSubject()
	if err != nil {
		return err
	}
	if err := w.ownPatch(r.PatchDigest); err != nil {
		return err
	}
	state := &runtimev1.LoopState{}
	if err := proto.Unmarshal(r.State, state); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "state of attempt %s cannot be read: %w", a.ID, err)
	}
	if state, err = w.trusted(state); err != nil {
		return err
	}
	if state.Phase != runtimev1.Phase_PHASE_TOOL || len(state.Pending) == 0 || state.Pending[0].Alias != subject.Alias {
		return w.endFailed(string(protocol.CodeFailedPrecondition), "The runner gave up the turn at another call than the one that a person is asked about.")
	}
	w.loop, w.turn.PatchDigest, w.dirty = state, r.PatchDigest, true
	w.spend(state.Usage)
	w.event(session.Event{Type: session.CheckpointTaken, Attempt: a.ID, Data: map[string]string{"patch_digest": r.PatchDigest}})
	w.afterCommit(w.e.rested.Ring) // the decision may be there already
	return nil
}

// trusted takes of a worker's state what happened, and nothing else.
func (w *turnTx) trusted(state *runtimev1.LoopState) (*runtimev1.LoopState, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	conversation, err := w.conversation()
	if err != nil {
		return nil, err
	}
	return loop.New(snap.Spec(policy.SpecParams{Conversation: conversation, Prompt: w.turn.Prompt, Resume: state})), nil
}

// parkedAttempt reports that the turn's attempt has ended for a question.
func (w *turnTx) parkedAttempt() (bool, error) {
	a, err := w.tx.Attempt(w.turn.Attempt)
	return isParked(a), err
}

func isParked(a execution.Attempt) bool {
	return a.State == execution.AttemptInterrupted && a.Reason == string(protocol.CodeApprovalRequired)
}

// restsForDecision reports that nothing works for the turn any more, so that its
// decision can be carried out. INV-7.
func (w *turnTx) restsForDecision() (bool, error) {
	if w.turn.Placement != session.PlacementRunner {
		return true, nil
	}
	return w.parkedAttempt()
}

// answerParked puts the result of the call into the transcript, and gives the turn
// a new attempt that goes on from there.
func (w *turnTx) answerParked(r *runtimev1.ToolResult) error {
	before, err := w.state()
	if err != nil {
		return err
	}
	if before.Phase != runtimev1.Phase_PHASE_TOOL || len(before.Pending) == 0 {
		return protocol.Errorf(protocol.CodeDataLoss, "turn %s is parked, and its transcript waits for no call", w.turn.ID)
	}
	result := proto.CloneOf(r)
	result.CallId = before.Pending[0].Id // the worker knows the call by this id
	after, commands := loop.Step(before, loop.ToolAnswered{Result: result})
	w.loop, w.dirty = after, true
	if known, err := w.answered(); err != nil {
		return err
	} else if known {
		if err := w.recordAdded(before, after); err != nil {
			return err
		}
	}
	w.settling = ""
	for _, c := range commands {
		if end, is := c.(loop.Finish); is {
			return w.finish(end.Outcome)
		}
	}
	return w.goOnAfterDecision(after)
}

// goOnAfterDecision makes the attempt. The time to work goes on where it stood.
func (w *turnTx) goOnAfterDecision(state *runtimev1.LoopState) error {
	s, err := w.tx.Session(w.turn.Session)
	if err != nil {
		return err
	}
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	if err := w.step(session.TurnContinue); err != nil {
		return err
	}
	w.moved("a person decided; the turn goes on in a new attempt")
	w.turn.Deadline = w.turn.Deadline.Add(snap.Agent.Limits.PlaceWithin)
	return w.startAttempt(s, state)
}

// questionLost reports a question whose attempt ended without a cursor: its
// machine fell before it could end as it was told.
func (w *turnTx) questionLost() (bool, error) { return questionLost(w.tx, w.turn.ID) }

func questionLost(tx *store.Tx, id protocol.TurnID) (bool, error) {
	t, err := tx.Turn(id)
	if err != nil || t.Placement != session.PlacementRunner || t.Attempt == "" || t.State != session.WaitingApproval {
		return false, err
	}
	a, err := tx.Attempt(t.Attempt)
	return a.State.Terminal() && !isParked(a), err
}

// askAgain takes such a question back, decided or not, and goes on from the last
// checkpoint, from which the model may ask it again. INV-6: the decision bound a
// call that is not in the transcript any more.
func (w *turnTx) askAgain() (bool, error) {
	a, err := w.tx.Attempt(w.turn.Attempt)
	if err != nil {
		return false, err
	}
	if ready, err := w.wakeSlice(); err != nil || !ready {
		return false, err
	}
	if err := w.releaseApprovals(); err != nil {
		return false, err
	}
	if err := w.releaseActions(); err != nil {
		return false, err
	}
	if err := w.step(session.TurnRefuse); err != nil {
		return false, err
	}
	return true, w.goOn(a, a.Message)
}

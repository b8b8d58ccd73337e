package storetest

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// guards: only the state and the fence that were read may be written over. INV-3.
func guards(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	higher, lower := x.Fence+1, x.Fence-1
	in := func(c store.Caller, fn func(tx *store.Tx) error) error { return s.Update(t.Context(), c, fn) }
	saveTurn := func(prior session.TurnState, fence, next protocol.Fence) error {
		return in(loop, func(tx *store.Tx) error {
			turn, err := tx.Turn(x.Active)
			if err != nil {
				return err
			}
			turn.OwnerFence, turn.Answer = next, "answer"
			return tx.SaveTurn(turn, prior, fence)
		})
	}
	wantCode(t, "turn, old fence", saveTurn(session.WaitingApproval, lower, x.Fence), protocol.CodeStaleFence)
	wantCode(t, "turn, fence not given out", saveTurn(session.WaitingApproval, higher, higher), protocol.CodeStaleFence)
	wantCode(t, "turn, fence falls", saveTurn(session.WaitingApproval, x.Fence, lower), protocol.CodeStaleFence)
	wantCode(t, "turn, another prior state", saveTurn(session.RunningModel, x.Fence, x.Fence), protocol.CodeConflict)
	if err := saveTurn(session.WaitingApproval, x.Fence, higher); err != nil {
		t.Error(err)
	}
	wantCode(t, "turn, the fence of a moment ago", saveTurn(session.WaitingApproval, x.Fence, x.Fence), protocol.CodeStaleFence)

	saveAction := func(prior session.ActionState, fence, next protocol.Fence) error {
		return in(loop, func(tx *store.Tx) error {
			return tx.SaveAction(session.Action{ID: x.Device, State: session.Reconciling, Fence: next}, prior, fence)
		})
	}
	wantCode(t, "action, old fence", saveAction(session.Dispatched, lower, x.Fence), protocol.CodeStaleFence)
	wantCode(t, "action, another prior state", saveAction(session.Intended, x.Fence, x.Fence), protocol.CodeConflict)
	if err := saveAction(session.Dispatched, x.Fence, higher); err != nil {
		t.Error(err)
	}

	saveAttempt := func(prior execution.AttemptState, fence protocol.Fence, runner protocol.RunnerID) error {
		return in(loop, func(tx *store.Tx) error {
			return tx.SaveAttempt(execution.Attempt{ID: x.Running, State: execution.AttemptRunning, Runner: runner, Fence: x.AttemptFence, StartedAt: tx.Now}, prior, fence)
		})
	}
	wantCode(t, "attempt, no fence", saveAttempt(execution.AttemptClaimed, 0, x.Runner), protocol.CodeStaleFence)
	wantCode(t, "attempt, another prior state", saveAttempt(execution.AttemptSuspect, x.AttemptFence, x.Runner), protocol.CodeConflict)
	if err := saveAttempt(execution.AttemptClaimed, x.AttemptFence, x.OtherRunner); err == nil {
		t.Error("a claimed attempt moved to another runner")
	}
	if err := saveAttempt(execution.AttemptClaimed, x.AttemptFence, x.Runner); err != nil {
		t.Error(err)
	}

	saveSession := func(prior session.State) error {
		return in(x.user(), func(tx *store.Tx) error {
			return tx.SaveSession(session.Session{ID: x.Session, State: session.Closing, Generation: 1}, prior)
		})
	}
	wantCode(t, "session, another prior state", saveSession(session.Closing), protocol.CodeConflict)
	if err := saveSession(session.Open); err != nil {
		t.Error(err)
	}
	saveRunner := func(prior execution.RunnerState) error {
		return in(loop, func(tx *store.Tx) error {
			return tx.SaveRunner(execution.Runner{ID: x.Runner, State: execution.RunnerActive, Name: "new name"}, prior)
		})
	}
	wantCode(t, "runner, another prior state", saveRunner(execution.RunnerLeft), protocol.CodeConflict)
	if err := saveRunner(execution.RunnerActive); err != nil {
		t.Error(err)
	}
	owners(t, s, x)
}

// owners: a turn is orphaned while its owner is no replica.
func owners(t *testing.T, s *store.Store, x *side) {
	orphans := func() (n int) {
		view(t, s, loop, func(tx *store.Tx) error {
			all, err := tx.OrphanedTurns(0)
			n = len(all)
			return err
		})
		return n
	}
	enter := func(r protocol.ReplicaID) {
		update(t, s, loop, func(tx *store.Tx) error { return tx.EnterReplica(execution.Replica{ID: r, Boot: "boot"}) })
	}
	if enter(id[protocol.ReplicaID]()); orphans() != 1 {
		t.Error("another replica is not the owner")
	}
	if enter(x.Replica); orphans() != 0 {
		t.Error("the owner is there")
	}
}

// steps: what the tables do not allow, the database refuses, also where the
// guard holds. INV-2, INV-4.
func steps(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	refused := func(what string, fn func(tx *store.Tx) error) {
		t.Helper()
		if err := attempt(s, fn); err == nil || !strings.Contains(err.Error(), "legal step") {
			t.Errorf("%s: %v", what, err)
		}
	}
	allowed := func(what string, fn func(tx *store.Tx) error) {
		t.Helper()
		if err := attempt(s, fn); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	turn := func(id protocol.TurnID, next session.TurnState) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			now, err := tx.Turn(id)
			if err != nil {
				return err
			}
			_, err = walk(tx, now, next)
			return err
		}
	}
	refused("a completed turn runs again", turn(x.Done, session.RunningModel))
	refused("a waiting turn completes", turn(x.Active, session.Completed))
	allowed("a waiting turn runs", turn(x.Active, session.RunningModel))
	refused("a turn begins in the middle", func(tx *store.Tx) error {
		_, err := tx.InsertTurn(session.Turn{ID: id[protocol.TurnID](), Session: x.Old, MessageID: "m", State: session.RunningModel})
		return err
	})
	action := func(id protocol.ActionID, prior, next session.ActionState) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			return tx.SaveAction(session.Action{ID: id, State: next, Fence: x.Fence}, prior, x.Fence)
		}
	}
	refused("an unknown outcome becomes a failure", action(x.Lost, session.ActionUnknown, session.ActionFailed)) // INV-5
	refused("an action is stored as dispatched", func(tx *store.Tx) error {                                      // INV-4
		return x.newAction(tx, id[protocol.ActionID](), session.Dispatched)
	})
	refused("what waits for approval is dispatched itself", action(x.Asked, session.AwaitingApproval, session.Dispatched))
	allowed("a dispatched action succeeds", action(x.Device, session.Dispatched, session.Succeeded))
	refused("it is dispatched again", action(x.Device, session.Succeeded, session.Dispatched))
	allowed("a closing session is closed", func(tx *store.Tx) error {
		return tx.SaveSession(session.Session{ID: x.Drained, State: session.Closed}, session.Closing)
	})
	refused("a closed session opens", func(tx *store.Tx) error {
		return tx.SaveSession(session.Session{ID: x.Drained, State: session.Open}, session.Closed)
	})
	approval := func(id protocol.ApprovalID, prior, next session.ApprovalState) func(tx *store.Tx) error {
		return func(tx *store.Tx) error { return tx.SaveApproval(session.Approval{ID: id, State: next}, prior) }
	}
	allowed("an approval is denied", approval(x.Pending, session.ApprovalPending, session.ApprovalDenied))
	refused("a denied one is approved", approval(x.Pending, session.ApprovalDenied, session.ApprovalApproved))
	save := func(prior, next execution.AttemptState) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			return tx.SaveAttempt(execution.Attempt{ID: x.Running, State: next, Runner: x.Runner, Fence: x.AttemptFence}, prior, x.AttemptFence)
		}
	}
	refused("a claimed attempt is offered again", save(execution.AttemptClaimed, execution.AttemptOffered))
	allowed("it is interrupted", save(execution.AttemptClaimed, execution.AttemptInterrupted))
	refused("it runs after its end", save(execution.AttemptInterrupted, execution.AttemptRunning))
	runner := func(prior, next execution.RunnerState) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			return tx.SaveRunner(execution.Runner{ID: x.Runner, State: next}, prior)
		}
	}
	allowed("a runner is revoked", runner(execution.RunnerActive, execution.RunnerRevoked))
	refused("it comes back", runner(execution.RunnerRevoked, execution.RunnerActive))
	allowed("a row is saved in its terminal state", func(tx *store.Tx) error {
		now, err := tx.Turn(x.Done)
		if err != nil {
			return err
		}
		now.CostMicroUSD = 7
		return tx.SaveTurn(now, session.Completed, now.OwnerFence)
	})
}

package storetest

import (
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// actions: the unknown inbox blocks a resource until a person decides. INV-5.
func actions(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	held := func() error {
		return s.View(t.Context(), x.user(), func(tx *store.Tx) error {
			a, err := tx.UnresolvedUnknown(x.User, "resource of red")
			if err == nil && a.ID != x.Lost {
				t.Errorf("found %s", a.ID)
			}
			return err
		})
	}
	resolve := func(id protocol.ActionID, how string) error {
		return s.Update(t.Context(), x.user(), func(tx *store.Tx) error {
			_, err := tx.ResolveUnknown(id, how, "looked")
			return err
		})
	}
	if err := held(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "without words", resolve(x.Lost, ""), protocol.CodeInvalidArgument)
	wantCode(t, "what is known", resolve(x.Device, "happened"), protocol.CodeFailedPrecondition)
	if err := resolve(x.Lost, "happened"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a second resolution", resolve(x.Lost, "did not"), protocol.CodeConflict)
	wantCode(t, "the resource is free", held(), protocol.CodeNotFound)
	view(t, s, x.user(), func(tx *store.Tx) error {
		a, err := tx.Action(x.Lost)
		if a.State != session.ActionUnknown || a.Resolution != "happened" || a.ResolutionNote != "looked" || a.ResolvedBy != x.User || a.ResolvedAt.IsZero() {
			t.Errorf("a resolution changes no state: %+v", a)
		}
		open, err2 := tx.Unknowns(false)
		all, err3 := tx.Unknowns(true)
		if len(open) != 0 || len(all) != 1 {
			t.Errorf("inbox %d, with resolved ones %d", len(open), len(all))
		}
		if err == nil && err2 == nil {
			err = err3
		}
		return err
	})
	view(t, s, loop, func(tx *store.Tx) error {
		all, err := tx.ActionsIn(2, session.AwaitingApproval, session.Dispatched)
		if len(all) != 2 {
			t.Errorf("%d actions, limit 2", len(all))
		}
		if err != nil {
			return err
		}
		return intentsOfOwner(t, tx, x)
	})
	wantCode(t, "the same id", attempt(s, func(tx *store.Tx) error { return x.newAction(tx, x.Lost, session.Intended) }), protocol.CodeAlreadyExists)
}

// intentsOfOwner: the backlog of one replica is not in the way of another.
func intentsOfOwner(t *testing.T, tx *store.Tx, x *side) error {
	mine, err := tx.IntentsOwned(x.Replica, store.All)
	if len(mine) != 1 || mine[0].State != session.Intended {
		t.Errorf("intents of the owner: %+v", mine)
	}
	if err != nil {
		return err
	}
	others, err := tx.IntentsOwned(id[protocol.ReplicaID](), store.All)
	if len(others) != 0 {
		t.Errorf("intents of another replica: %+v", others)
	}
	return err
}

// approvals are consumed at most once, for exactly their digest. INV-6.
func approvals(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	right := digest("subject of red")
	wantCode(t, "a second pending one", attempt(s, func(tx *store.Tx) error {
		return x.newApproval(tx, id[protocol.ApprovalID](), x.Asked, tx.Now.Add(time.Hour))
	}), protocol.CodeConflict)
	consume := func(p protocol.ApprovalID, by protocol.ActionID, digest string) error {
		return attempt(s, func(tx *store.Tx) error { return tx.ConsumeApproval(p, by, digest) })
	}
	next := []protocol.ActionID{id[protocol.ActionID](), id[protocol.ActionID]()}
	for _, a := range next {
		update(t, s, loop, func(tx *store.Tx) error { return x.newAction(tx, a, session.Intended) })
	}
	wantCode(t, "another digest", consume(x.Approved, next[0], digest("another")), protocol.CodeConflict)
	wantCode(t, "a pending one", consume(x.Pending, next[0], right), protocol.CodeConflict)
	wantCode(t, "saved as consumed", attempt(s, func(tx *store.Tx) error {
		return tx.SaveApproval(session.Approval{ID: x.Approved, State: session.ApprovalConsumed}, session.ApprovalApproved)
	}), protocol.CodeInternal)

	var group sync.WaitGroup
	won := make(chan protocol.ActionID, len(next))
	for _, a := range next {
		group.Go(func() {
			if err := consume(x.Approved, a, right); err == nil {
				won <- a
			} else if code := protocol.CodeOf(err); code != protocol.CodeConflict {
				t.Errorf("the loser of the race: %v", err)
			}
		})
	}
	group.Wait()
	close(won)
	if len(won) != 1 {
		t.Fatalf("%d actions consumed one approval", len(won))
	}
	winner := <-won
	view(t, s, x.user(), func(tx *store.Tx) error {
		a, err := tx.Approval(x.Approved)
		if a.State != session.ApprovalConsumed || a.ConsumedBy != winner || a.ConsumedAt.IsZero() {
			t.Errorf("%+v", a)
		}
		return err
	})
	// One action uses up one approval: another approved one is not for it.
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.SaveApproval(session.Approval{ID: x.Pending, State: session.ApprovalApproved}, session.ApprovalPending)
	})
	wantCode(t, "a second approval for one action", consume(x.Pending, winner, right), protocol.CodeConflict)
	loser := next[0]
	if loser == winner {
		loser = next[1]
	}
	if err := consume(x.Pending, loser, right); err != nil {
		t.Error(err)
	}
	expiry(t, s, x, right)
}

// expiry: past its time an approval consumes nothing, whether or not it was recorded.
func expiry(t *testing.T, s *store.Store, x *side, right string) {
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.SaveApproval(session.Approval{ID: x.Late, State: session.ApprovalApproved}, session.ApprovalPending)
	})
	wantCode(t, "an expired one", attempt(s, func(tx *store.Tx) error {
		return tx.ConsumeApproval(x.Late, id[protocol.ActionID](), right)
	}), protocol.CodeFailedPrecondition)
	listed := func() (n int) {
		view(t, s, loop, func(tx *store.Tx) error {
			all, err := tx.ApprovalsPastExpiry(0)
			n = len(all)
			return err
		})
		return n
	}
	if listed() != 1 {
		t.Errorf("%d past expiry, want the one", listed())
	}
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.SaveApproval(session.Approval{ID: x.Late, State: session.ApprovalExpired}, session.ApprovalApproved)
	})
	if listed() != 0 {
		t.Errorf("%d past expiry, want none", listed())
	}
}

// claims: the first wins, and asking again is harmless. INV-14.
func claims(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	claim := func(c store.Caller, r protocol.RunnerID, nonce string) (a execution.Attempt, err error) {
		err = s.Update(t.Context(), c, func(tx *store.Tx) (err error) {
			a, err = tx.ClaimAttempt(x.Offered, r, nonce)
			return err
		})
		return a, err
	}
	_, err := claim(x.otherRunner(), x.OtherRunner, "b")
	wantCode(t, "a runner that it was not offered to", err, protocol.CodeNotFound)
	_, err = claim(loop, x.OtherRunner, "b")
	wantCode(t, "the same, asked by the engine", err, protocol.CodeConflict)
	_, err = claim(x.runner(), x.Runner, "")
	wantCode(t, "without a nonce", err, protocol.CodeInvalidArgument)

	var mu sync.Mutex
	var winners []execution.Attempt
	var group sync.WaitGroup
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		group.Go(func() {
			a, err := claim(x.runner(), x.Runner, n)
			if err != nil {
				wantCode(t, "claim "+n, err, protocol.CodeConflict)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			winners = append(winners, a)
		})
	}
	group.Wait()
	if len(winners) != 1 {
		t.Fatalf("%d supervisors passed one claim", len(winners))
	}
	won := winners[0]
	if won.State != execution.AttemptClaimed || won.Fence.Epoch() != s.Epoch() || won.ClaimedAt.IsZero() || won.RenewedAt.IsZero() {
		t.Errorf("%+v", won)
	}
	again, err := claim(x.runner(), x.Runner, won.BootNonce)
	if err != nil || again.Fence != won.Fence || !again.ClaimedAt.Equal(won.ClaimedAt) {
		t.Errorf("the winner asks again: %v, %s instead of %s", err, again.Fence, won.Fence)
	}
	// A later attempt of the same subject is above it.
	later := id[protocol.AttemptID]()
	update(t, s, loop, func(tx *store.Tx) error {
		won.State = execution.AttemptInterrupted
		if err := tx.SaveAttempt(won, execution.AttemptClaimed, won.Fence); err != nil {
			return err
		}
		if err := tx.InsertAttempt(execution.Attempt{ID: later, Tenant: x.Tenant, Principal: x.User, SubjectKind: execution.SubjectTurn,
			SubjectID: x.Active.String(), Number: 2, State: execution.AttemptQueued}); err != nil {
			return err
		}
		if err := tx.SaveAttempt(execution.Attempt{ID: later, State: execution.AttemptOffered, Runner: x.Runner}, execution.AttemptQueued, 0); err != nil {
			return err
		}
		a, err := tx.ClaimAttempt(later, x.Runner, "g")
		if a.Fence <= won.Fence {
			t.Errorf("fence %s after %s", a.Fence, won.Fence)
		}
		return err
	})
	_, err = claim(x.runner(), x.Runner, won.BootNonce)
	wantCode(t, "after its end", err, protocol.CodeFailedPrecondition)
	wantCode(t, "claimed by a plain save", attempt(s, func(tx *store.Tx) error {
		return tx.SaveAttempt(execution.Attempt{ID: x.Offered, State: execution.AttemptClaimed}, execution.AttemptOffered, 0)
	}), protocol.CodeInternal)
	wantCode(t, "the same number", attempt(s, func(tx *store.Tx) error {
		return tx.InsertAttempt(execution.Attempt{ID: id[protocol.AttemptID](), Tenant: x.Tenant, Principal: x.User,
			SubjectKind: execution.SubjectTurn, SubjectID: x.Active.String(), Number: 2, State: execution.AttemptQueued})
	}), protocol.CodeAlreadyExists)
}

// records: known sequences are skipped, a stale fence is evidence only. INV-3.
func records(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	put := func(fence protocol.Fence, evidence bool, seqs ...int64) error {
		return s.Update(t.Context(), x.runner(), func(tx *store.Tx) error {
			var all []store.Record
			for _, n := range seqs {
				all = append(all, store.Record{Seq: n, At: tx.Now, Body: []byte{byte(n), byte(len(seqs))}})
			}
			return tx.PutRecords(x.Running, fence, evidence, all)
		})
	}
	if err := put(x.AttemptFence, false, 1, 2, 3); err != nil {
		t.Fatal(err)
	}
	if err := put(x.AttemptFence, false, 2, 3); err != nil {
		t.Errorf("a repeated report: %v", err)
	}
	wantCode(t, "another fence", put(x.AttemptFence+1, false, 4), protocol.CodeStaleFence)
	if err := put(x.AttemptFence+1, true, 4); err != nil {
		t.Errorf("evidence: %v", err)
	}
	wantCode(t, "sequence zero", put(x.AttemptFence, false, 0), protocol.CodeInvalidArgument)
	view(t, s, x.runner(), func(tx *store.Tx) error {
		all, err := tx.Records(x.Running)
		if len(all) != 4 {
			t.Fatalf("%d records, want 4", len(all))
		}
		for i, r := range all {
			if r.Seq != int64(i+1) || r.At.IsZero() || r.Evidence != (r.Seq == 4) {
				t.Errorf("record %d: %+v", i, r)
			}
		}
		if all[1].Body[1] != 3 {
			t.Error("a known sequence was written over")
		}
		return err
	})
}

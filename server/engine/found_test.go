package engine_test

import (
	"context"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// What the simulation found, each as the smallest case of it.

// INV-5: an earlier call becomes unknown after the intent of another one on the
// same thing, and before its dispatch: the other one is not carried out.
func TestUnknownSinceTheIntent(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.LoseAnswers("http:send", 1)
		w.Broker.Say(et.Script(et.Calls(sent), et.Calls(sent), et.Text("blocked")))
		first := w.Submit(w.Session("assistant"), "send")
		w.Settle()
		approve(t, w, first.ID, true)
		w.Settle()
		wantState(t, w, first.ID, session.WaitingReconciliation, "")
		second := w.Submit(w.Session("assistant"), "send too")
		w.Settle()
		wantState(t, w, second.ID, session.WaitingApproval, "")
		w.Sleep(61 * time.Second)
		wantState(t, w, first.ID, session.Unknown, "outcome_unknown")
		approve(t, w, second.ID, true)
		w.Settle()
		wantState(t, w, second.ID, session.Completed, "")
		if n := len(w.Broker.Effects()); n != 1 {
			t.Errorf("%d effects", n)
		}
		if res := lastResult(w); res.GetCode() != string(protocol.CodeOutcomeUnknown) {
			t.Errorf("the model saw %v", res)
		}
	})
}

// INV-7: an attempt that is to end while a person decides keeps its lease for that,
// and gets no capability with it.
func TestWaitingAttemptGetsNoCapability(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		if resp := r.Renew(); len(resp.GetLeases()) != 1 || resp.Leases[0].Terms.GetCapability() == "" {
			t.Fatalf("a turn that runs is renewed with %v", resp)
		}
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: et.Calls(write).Done.Message}})
		h.AskParked(write)
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if resp := r.Renew(); len(resp.GetLeases()) != 1 || resp.Leases[0].Terms.GetCapability() != "" {
			t.Errorf("a turn that waits is renewed with %v", resp)
		}
	})
}

// A server that starts while its database is away tries to give its first sign now
// and then, and not as fast as it can.
func TestFirstSignIsNotHammered(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		other, _ := w.Beside(otherReplica)
		away, cancel := context.WithCancel(ctx())
		cancel()
		for _, tick := range other.Ticks() {
			if tick.Name != "owners" {
				continue
			}
			if in := tick.Due(); in > 0 {
				t.Errorf("the first sign is due in %s", in)
			}
			if _, err := tick.Do(away); err == nil {
				t.Fatal("a sign was given without a database")
			}
			if in := tick.Due(); in < 50*time.Millisecond || in > 5*time.Second {
				t.Errorf("it is tried again in %s", in)
			}
			time.Sleep(5 * time.Second)
			if worked, err := tick.Do(ctx()); err != nil || !worked {
				t.Errorf("with the database back: %t, %v", worked, err)
			}
			return
		}
		t.Error("no tick gives signs")
	})
}

// INV-18: the replica that a runner talks to hears that it holds an attempt no
// more. Another one, which has no evidence, does not put the cleanup off.
func TestCleanupIsTheReplicasThatTheRunnerTalksTo(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		other, _ := w.Beside(otherReplica)
		pass(t, other)
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), turn.ID); err != nil {
			t.Fatal(err)
		}
		open := func() (n int) {
			err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
				all, _, err := tx.Cleanups(0, "")
				for _, c := range all {
					if c.Kind == "attempt" && c.Subject == h.ID.String() {
						n++
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		pass(t, other)
		if open() != 1 {
			t.Fatal("no cleanup waits for the runner's word")
		}
		if _, err := w.Engine.Connect(ctx(), r.Caller(), "http/2", &runnerv1.ConnectRequest{
			CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot", Facts: r.Facts, LastEpoch: r.Epoch(),
		}); err != nil {
			t.Fatal(err)
		}
		pass(t, w.Engine)
		if open() != 0 {
			t.Error("the other replica has put the cleanup off")
		}
	})
}

package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

func attempt(t *testing.T, w *et.World, id protocol.AttemptID) (a execution.Attempt) {
	t.Helper()
	if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		a, err = tx.Attempt(id)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return a
}

// until lets virtual time pass in steps of half a second until something is
// true, and returns how long that took.
func until(t *testing.T, w *et.World, most time.Duration, met func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !met() {
		if time.Since(begin) > most {
			t.Fatalf("not within %s", most)
		}
		time.Sleep(500 * time.Millisecond)
		w.Settle()
	}
	return time.Since(begin)
}

// INV-20: SUSPECT after the authority ttl, over after retention plus guard, to
// the tick; and a renewal takes it all back.
func TestLeaseTimes(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		w.Sleep(time.Minute) // renewals keep it
		if a := attempt(t, w, h.ID); a.State != execution.AttemptRunning {
			t.Fatalf("a renewed attempt is %s", a.State)
		}
		r.Renews = false
		r.Renew()
		suspect := func() bool { return attempt(t, w, h.ID).State == execution.AttemptSuspect }
		if took := until(t, w, time.Minute, suspect); took != 15*time.Second {
			t.Errorf("suspect after %s", took)
		}
		if x, err := w.Engine.Explain(ctx(), w.Me(), h.ID.String()); err != nil || strings.Join(x.Remedies, "; ") != "on that machine: bivouac-edge doctor" {
			t.Errorf("a machine that may run without its network: %+v, %v", x.Remedies, err)
		}
		if resp := r.Renew(); len(resp.Leases) != 1 || resp.Leases[0].Terms.Capability == "" {
			t.Fatalf("renewal of a suspect: %+v", resp)
		}
		w.Settle()
		if a := attempt(t, w, h.ID); a.State != execution.AttemptRunning {
			t.Errorf("after the renewal it is %s", a.State)
		}
		r.Claims = false
		over := func() bool { return attempt(t, w, h.ID).State == execution.AttemptInterrupted }
		if took := until(t, w, 2*time.Minute, over); took != 62*time.Second {
			t.Errorf("interrupted after %s", took)
		}
		if resp := r.Renew(); len(resp.Leases) != 0 {
			t.Errorf("a lost lease is in the answer: %+v", resp)
		}
		wantState(t, w, turn.ID, session.Received, "") // it waits for another machine
	})
}

// A server that starts before the broker has certified its signing key keeps the
// leases that a runner names; only revocation takes them. INV-13, INV-14.
func TestNoSigningKeyIsNoReasonToLoseWork(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		certify := w.RestartUncertified()
		resp := r.Connect()
		if len(resp.Leases) != 1 || !resp.Leases[0].Alive || resp.Leases[0].Terms.GetAuthorityTtlMs() != 15_000 {
			t.Fatalf("the new process takes the lease back: %v", resp.Leases)
		}
		if got := r.Renew(); len(got.GetLeases()) != 1 || got.Leases[0].Terms.GetCapability() != "" {
			t.Errorf("a renewal without a key: %v", got)
		}
		certify()
		if got := r.Renew(); len(got.GetLeases()) != 1 || got.Leases[0].Terms.GetCapability() == "" {
			t.Errorf("a renewal with a key: %v", got)
		}
		h.Finish("done", "")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	})
	inWorld(t, func(w *et.World, r *et.Runner) {
		begun(t, w, r)
		w.RestartUncertified()
		if _, err := w.Engine.DisablePrincipal(ctx(), store.AsOperator("test"), w.Person.ID); err != nil {
			t.Fatal(err)
		}
		if resp := r.Connect(); len(resp.Leases) != 1 || resp.Leases[0].Alive {
			t.Errorf("a lease whose principal was disabled: %v", resp.Leases)
		}
	})
}

// A machine that dies leaves one new attempt from the last checkpoint.
func TestInterruptedGoesOnFromCheckpoint(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		state := &runtimev1.LoopState{Messages: []*runtimev1.Message{et.Text("half way").Done.Message}, ModelCalls: 1, Usage: &runtimev1.Usage{InputTokens: 9}}
		patch := r.Upload(h, "half a patch")
		h.Checkpoint(state, patch)
		w.Settle()
		r.Disconnect()
		other := w.Join("desktop", "files.read")
		w.Sleep(61 * time.Second)
		wantState(t, w, turn.ID, session.RunningModel, "")
		w.Sleep(2 * time.Second)
		next := other.Turn()
		if next.Work.GetTurn().CheckpointPatchDigest != patch || next.Spec().Resume.GetModelCalls() != 1 || next.Fence <= h.Fence {
			t.Fatalf("the new attempt's work %+v, fence %s after %s", next.Work.GetTurn(), next.Fence, h.Fence)
		}
		// The first machine comes back: its lease is gone, its result is evidence.
		r.Connect()
		h.Finish("from the dead", "")
		w.Settle()
		wantState(t, w, turn.ID, session.RunningModel, "")
		next.Finish("done", "")
		w.Settle()
		if got := wantState(t, w, turn.ID, session.Completed, ""); got.Answer != "done" || got.Attempts != 2 {
			t.Errorf("turn %+v", got)
		}
		if !slices.Contains(w.Types(turn.Session), session.LateResult) {
			t.Error("no evidence of the late result")
		}
		// The second loss would be the last.
		if debt := cleanupDebt(t, w); debt != 0 {
			t.Errorf("%d cleanups are left", debt)
		}
	})
}

func cleanupDebt(t *testing.T, w *et.World) (n int) {
	t.Helper()
	w.Sleep(5 * time.Second)
	if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		n, err = tx.CleanupDebt()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Only one new attempt, and none where an effect could happen twice.
func TestInterruptedEndsTheTurn(t *testing.T) {
	t.Run("second loss", func(t *testing.T) {
		inWorld(t, func(w *et.World, r *et.Runner) {
			r.Renews = false
			turn, _ := begun(t, w, r)
			w.Sleep(3 * time.Minute)
			wantState(t, w, turn.ID, session.Failed, "interrupted")
			if got := w.Turn(turn.ID); got.Attempts != 2 {
				t.Errorf("%d attempts", got.Attempts)
			}
		})
	})
	t.Run("an effect that the checkpoint does not know", func(t *testing.T) {
		inWorld(t, func(w *et.World, r *et.Runner) {
			turn, h := begun(t, w, r)
			h.Ask(et.Call{ID: "1", Alias: "note", Arguments: `{"text":"x"}`})
			w.Settle()
			r.Renews = false
			w.Sleep(2 * time.Minute)
			wantState(t, w, turn.ID, session.Failed, "interrupted")
		})
	})
}

// A device action whose machine goes silent: its journal, if it comes back before
// the deadline, is the evidence; otherwise a write is UNKNOWN and a read failed.
func TestDeviceActionLosesItsMachine(t *testing.T) {
	read := et.Call{ID: "r", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}
	for _, c := range []struct {
		name   string
		call   et.Call
		back   bool
		status runtimev1.ResultStatus
	}{
		{"a read that comes back", read, true, runtimev1.ResultStatus_RESULT_STATUS_OK},
		{"a read that does not", read, false, runtimev1.ResultStatus_RESULT_STATUS_FAILED},
		{"a write that comes back", write, true, runtimev1.ResultStatus_RESULT_STATUS_OK},
		{"a write that does not", write, false, runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				w.Broker.Say(et.Script(et.Calls(c.call), et.Text("I see")))
				turn := w.Submit(w.Session("assistant"), "go")
				if c.call == write {
					w.Settle()
					approve(t, w, turn.ID, true)
				}
				r.Reports, r.Renews = false, false // done, and silent
				w.Settle()
				wantState(t, w, turn.ID, session.RunningAction, "")
				r.Disconnect()
				w.Sleep(16 * time.Second)
				wantState(t, w, turn.ID, session.WaitingReconciliation, "")
				if c.back {
					w.Sleep(30 * time.Second)
					r.Reports = true
					r.Connect()
					w.Settle()
				}
				w.Sleep(61 * time.Second)
				wantState(t, w, turn.ID, session.Completed, "")
				if res := lastResult(w); res.GetStatus() != c.status {
					t.Errorf("the model saw %v", res)
				}
				if c.back {
					return
				}
				r.Reports = true
				r.Connect()
				w.Settle()
				for _, a := range w.Actions(turn.ID) {
					if c.call == write && a.State == session.ActionUnknown && a.Evidence == "" {
						t.Error("the late journal is no evidence")
					}
				}
			})
		})
	}
}

// A later epoch ends the earlier one, whoever speaks under it.
func TestEpochs(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		old := r.Epoch()
		if _, err := w.Engine.Mail(ctx(), r.Caller(), old, 0, 1); err != nil {
			t.Fatalf("the positive twin: %v", err)
		}
		r.Connect()
		if r.Epoch() != old+1 {
			t.Fatalf("epoch %d after %d", r.Epoch(), old)
		}
		_, err := w.Engine.Mail(ctx(), r.Caller(), old, 0, 1)
		wantCode(t, "mail", err, protocol.CodeStaleFence)
		_, err = w.Engine.Renew(ctx(), r.Caller(), &runnerv1.RenewRequest{Epoch: old})
		wantCode(t, "renew", err, protocol.CodeStaleFence)
		_, err = w.Engine.Claim(ctx(), r.Caller(), &runnerv1.ClaimRequest{Epoch: old, AttemptId: "att_01jdv3k8x0q6v9w2m4t7y5z1ab", BootNonce: "n"})
		wantCode(t, "claim", err, protocol.CodeStaleFence)
		if err := w.Engine.Disconnect(ctx(), r.Caller(), old); err != nil {
			t.Errorf("the old stream's end: %v", err)
		}
		if _, err := w.Engine.Mail(ctx(), r.Caller(), r.Epoch(), 0, 1); err != nil {
			t.Errorf("the end of the old stream ended the new one: %v", err)
		}
	})
}

// What becomes of a turn's sandboxes on a machine that is on its own is told in the
// session, with the machine's own time, in a chain that holds; a state that is none is
// evidence alone, and words are payload.
func TestSandboxesThatStandStillAreTold(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		at := time.Now()
		for _, m := range []*runnerv1.SandboxMoved{
			{State: "frozen", Reason: "the server cannot be reached  " + strings.Repeat("é", 1000)}, {State: "dancing", Reason: "secret"}, {State: "running"},
		} {
			h.Append(&runnerv1.Record{Kind: &runnerv1.Record_SandboxMoved{SandboxMoved: m}})
		}
		w.Sleep(time.Second)
		h.Finish("done", "")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		var got []string
		for _, e := range w.Events(turn.Session) {
			if e.Type != session.SandboxMoved {
				continue
			}
			got = append(got, e.Data["state"])
			if e.Attempt != h.ID || e.Turn != turn.ID || e.Data["runner"] != r.ID.String() || e.Data["machine_time"] != at.UTC().Format(time.RFC3339Nano) || len(e.Payload) > 300 || !utf8.ValidString(e.Payload) {
				t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(got, []string{"frozen", "running"}) {
			t.Errorf("told %v", got)
		}
		if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error { return tx.VerifyEvents(turn.Session) }); err != nil {
			t.Error(err)
		}
	})
}

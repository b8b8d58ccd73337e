package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// sessionNow is a session as the store has it.
func sessionNow(t *testing.T, w *et.World, id protocol.SessionID) (s session.Session) {
	t.Helper()
	if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		s, err = tx.Session(id)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// wantRefused holds that a session takes no prompt, and that the refusal names why
// and the command that goes on.
func wantRefused(t *testing.T, w *et.World, id protocol.SessionID, why string) {
	t.Helper()
	_, err := submit(w, w.Me(), engine.NewTurn{Session: id, MessageID: "late", Prompt: "late"})
	wantCode(t, why, err, protocol.CodeFailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "bivouac chat --agent") {
		t.Errorf("the refusal is %v, want %q and what to do", err, why)
	}
}

// wantNothingOwed holds that what worked for ended turns is cleaned up. INV-18.
func wantNothingOwed(t *testing.T, w *et.World) {
	t.Helper()
	w.Sleep(10 * time.Second)
	if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
		owed, _, err := tx.Cleanups(100, "")
		for _, c := range owed {
			t.Errorf("%s of %s is owed: %s", c.Kind, c.Subject, c.Evidence)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// Idle time counts from the end of the last turn, stands still while one waits for
// a person, and a server that was away expires what is due when it comes back.
func TestIdleSessionExpires(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		applied(t, w, `limits    { max_queued = 3 }`, `limits { session_idle = "5m" }`)
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		s := w.Session("assistant")
		turn := w.Submit(s, "write")
		w.Sleep(9 * time.Minute) // more than the idle time, and the question is still open
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if got := sessionNow(t, w, s.ID); got.State != session.Open {
			t.Fatalf("a session with an open question is %s", got.State)
		}
		approve(t, w, turn.ID, true)
		w.Settle()
		ended := wantState(t, w, turn.ID, session.Completed, "").EndedAt
		w.Sleep(5*time.Minute - 10*time.Second)
		if got := sessionNow(t, w, s.ID); got.State != session.Open || !got.LastActiveAt.Equal(ended) {
			t.Errorf("just before its end it is %s, idle since %s, its turn ended at %s", got.State, got.LastActiveAt, ended)
		}
		w.Restart()
		r.Connect()
		time.Sleep(time.Minute)
		w.Settle()
		if got := sessionNow(t, w, s.ID); got.State != session.Expired {
			t.Errorf("idle: %s", got.State)
		}
		last := w.Events(s.ID)[len(w.Events(s.ID))-1]
		if last.Type != session.SessionClosed || last.Data["reason"] != "idle" {
			t.Errorf("the last event is %s %v", last.Type, last.Data)
		}
		wantRefused(t, w, s.ID, "was idle for 5m0s")
		wantNothingOwed(t, w)
	})
}

// INV-13, INV-18: at its maximum lifetime a session ends with what waits and what
// works in it, also on a runner; a session without that limit goes on.
func TestSessionLifetimeEndsItsTurns(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		twin := w.Session("coder")
		src := strings.Replace(et.Coder, "  lease {", "  limits { session_max = \"10m\" }\n  lease {", 1)
		if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "a.hcl", Source: []byte(src)}); err != nil {
			t.Fatal(err)
		}
		s := w.Session("coder")
		w.Sleep(10*time.Minute - 5*time.Second)
		active, queued, other := w.Submit(s, "work"), w.Submit(s, "more"), w.Submit(twin, "elsewhere")
		w.Until("both run", func() bool {
			return w.Turn(active.ID).State == session.RunningModel && w.Turn(other.ID).State == session.RunningModel
		})
		time.Sleep(6 * time.Second)
		w.Settle()
		wantState(t, w, active.ID, session.Failed, "session_expired")
		wantState(t, w, queued.ID, session.Cancelled, "session_expired")
		if got := sessionNow(t, w, s.ID); got.State != session.Expired {
			t.Errorf("after its lifetime: %s", got.State)
		}
		if len(r.Stopped) != 1 {
			t.Errorf("the runner was told to stop %v", r.Stopped)
		}
		events := w.Events(s.ID) // what its turn used is settled after it closed
		events = slices.DeleteFunc(events, func(e session.Stored) bool { return e.Type == session.UsageSettled })
		if last := events[len(events)-1]; last.Type != session.SessionClosed || last.Data["reason"] != "lifetime" {
			t.Errorf("the last event is %s %v", last.Type, last.Data)
		}
		wantRefused(t, w, s.ID, "maximum lifetime")
		if got := sessionNow(t, w, twin.ID); got.State != session.Open || w.Turn(other.ID).State.Terminal() {
			t.Errorf("its twin is %s, the turn %s", got.State, w.Turn(other.ID).State)
		}
	})
}

// A server's limits narrow what an agent allows, and never widen it. INV-10.
func TestServerNarrowsLifetimes(t *testing.T) {
	l := engine.Limits{MaxSessionIdle: time.Hour, MaxSessionLifetime: 2 * time.Hour, MaxApprovalWait: time.Minute}
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("too late"), et.Calls(write), et.Text("in time")))
		s := w.Session("assistant")
		if s.IdleTTL != time.Hour || s.ExpiresAt.Sub(s.CreatedAt) != 2*time.Hour {
			t.Errorf("idle %s, lifetime %s", s.IdleTTL, s.ExpiresAt.Sub(s.CreatedAt))
		}
		turn := w.Submit(s, "write")
		w.Settle()
		a := w.Approvals(turn.ID)[0]
		if a.ExpiresAt.Sub(a.CreatedAt) != time.Minute {
			t.Errorf("a question waits for %s", a.ExpiresAt.Sub(a.CreatedAt))
		}
		w.Sleep(61 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
		_, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: true})
		wantCode(t, "after the server's limit", err, protocol.CodeConflict)

		applied(t, w, `approvals { ttl = "10m" }`, `approvals { ttl = "30s" }`) // less than the server allows
		turn = w.Submit(w.Session("assistant"), "again")
		w.Settle()
		if a := w.Approvals(turn.ID)[0]; a.ExpiresAt.Sub(a.CreatedAt) != 30*time.Second {
			t.Errorf("an agent's own 30 s are %s", a.ExpiresAt.Sub(a.CreatedAt))
		}
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	}, et.WithLimits(l))
}

// INV-13, INV-18: a session that its person ends stops what works in it at once,
// and its capabilities; closing it instead lets the turn end. Both are idempotent.
func TestEndSession(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Calls(write), et.Text("done")))
		s, twin := w.Session("assistant"), w.Session("assistant")
		active, queued, other := w.Submit(s, "work"), w.Submit(s, "more"), w.Submit(twin, "other")
		w.Settle()
		_, stranger := w.Principal("elsewhere", "eve", true)
		_, err := w.Engine.EndSession(ctx(), et.Caller(stranger), s.ID)
		wantCode(t, "a stranger", err, protocol.CodeNotFound)
		wantState(t, w, active.ID, session.WaitingApproval, "")
		for range 2 {
			if got, err := w.Engine.EndSession(ctx(), w.Me(), s.ID); err != nil || got.State != session.Revoked {
				t.Fatalf("end: %s, %v", got.State, err)
			}
		}
		if _, err := w.Engine.CloseSession(ctx(), w.Me(), twin.ID); err != nil {
			t.Fatal(err)
		}
		wantState(t, w, active.ID, session.Failed, "session_ended")
		wantState(t, w, queued.ID, session.Cancelled, "session_ended")
		wantRefused(t, w, s.ID, "was revoked")
		wantRefused(t, w, twin.ID, "was closed")
		if n := slices.IndexFunc(w.Broker.Floors(), func(f policy.Floor) bool { return f.Kind == policy.FloorSession && f.ID == s.ID.String() }); n < 0 {
			t.Error("no floor refuses the session's capabilities")
		}
		approve(t, w, other.ID, true)
		w.Settle()
		wantState(t, w, other.ID, session.Completed, "")
		if got := sessionNow(t, w, twin.ID); got.State != session.Closed {
			t.Errorf("the closed one is %s", got.State)
		}
		if len(r.Writes) != 1 {
			t.Errorf("writes %v", r.Writes)
		}
		wantNothingOwed(t, w)
	})
}

// INV-18: the end of a disabled person's sessions is asked for with the revocation,
// and carried out by whoever starts next.
func TestDisabledPrincipalsSessionsEnd(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		_, friend := w.Principal("local", "bob", false)
		s, err := w.Engine.CreateSession(ctx(), et.Caller(friend), engine.NewSession{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		mine := w.Session("assistant")
		if _, err := w.Engine.DisablePrincipal(ctx(), w.Me(), friend.ID); err != nil {
			t.Fatal(err)
		}
		w.Restart() // right after the commit
		w.Settle()
		if got := sessionNow(t, w, s.ID); got.State != session.Revoked {
			t.Errorf("the session of a disabled person is %s", got.State)
		}
		if got := sessionNow(t, w, mine.ID); got.State != session.Open {
			t.Errorf("mine is %s", got.State)
		}
		wantNothingOwed(t, w)
	})
}

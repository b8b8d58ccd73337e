package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// INV-13: revoking a grant in the middle of a turn ends it in every layer, and
// nothing is minted or admitted under it again.
func TestRevokeGrantMidTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: []string{"weather-token"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		s := w.Session("assistant")
		turn, queued := w.Submit(s, "first"), w.Submit(s, "second")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		_, bob := w.Principal("local", "bob", false)
		_, err = w.Engine.RevokeGrant(ctx(), et.Caller(bob), g.ID, "no")
		wantCode(t, "another's grant", err, protocol.CodeNotFound)

		rev, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "stolen laptop")
		if err != nil {
			t.Fatal(err)
		}
		if rev.Receipt == "" || rev.Grant.RevokedAt.IsZero() || len(rev.Layers) != 5 || rev.Grant.Receipt != rev.Receipt || rev.Grant.Pending() != "" {
			t.Errorf("revocation %+v", rev)
		}
		for _, l := range rev.Layers {
			if !l.Gone {
				t.Errorf("layer %+v", l)
			}
		}
		wantState(t, w, turn.ID, session.Failed, "grant_revoked")
		wantState(t, w, queued.ID, session.Cancelled, "grant_revoked")
		calls := len(w.Broker.Requests())
		w.Sleep(time.Minute)
		if n := len(w.Broker.Requests()); n != calls {
			t.Errorf("%d model calls after the revocation", n-calls)
		}
		_, err = submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "p"})
		wantCode(t, "a revoked session", err, protocol.CodeFailedPrecondition)
		// The agent does not come back under another session, until it is given a grant.
		_, err = w.Engine.CreateSession(ctx(), w.Me(), engine.NewSession{Agent: "assistant"})
		wantCode(t, "a new session under a revoked grant", err, protocol.CodePolicyDenied)
		if _, err := w.Engine.CreateSession(ctx(), w.Me(), engine.NewSession{Agent: "coder"}); err != nil {
			t.Errorf("another agent: %v", err)
		}
		if _, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"}); err != nil {
			t.Fatal(err)
		}
		w.Session("assistant")
		if again, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "again"); err != nil || !again.Grant.RevokedAt.Equal(rev.Grant.RevokedAt) {
			t.Errorf("again: %+v, %v", again, err)
		}
	})
}

// The broker, and through it a runner, may refuse under a revocation before the
// work was ended here: the turn ends for the revocation all the same, and only
// where nothing was taken back for what the provider said.
func TestRevocationIsTheReason(t *testing.T) {
	for _, revoked := range []bool{true, false} {
		want := map[bool]string{true: "grant_revoked", false: "model_auth"}[revoked]
		inWorld(t, func(w *et.World, r *et.Runner) {
			take := func(agent string) func() {
				g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: agent})
				if err != nil {
					t.Fatal(err)
				}
				return func() { // as another replica does, whose floor is not here yet
					err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
						_, err := tx.RevokeGrant(g.ID, "")
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
			takeChat, takeCode := take("assistant"), take("coder")
			w.Broker.Say(func(context.Context, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
				if revoked {
					takeChat()
				}
				return nil, protocol.Errorf(protocol.CodePermissionDenied, "refused")
			})
			turn := w.Submit(w.Session("assistant"), "first")
			w.Settle()
			wantState(t, w, turn.ID, session.Failed, want)

			turn, h := begun(t, w, r)
			if revoked {
				takeCode()
			}
			outcome, err := proto.Marshal(&runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: "model_auth"})
			if err != nil {
				t.Fatal(err)
			}
			h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "succeeded", Outcome: outcome}}})
			w.Settle()
			wantState(t, w, turn.ID, session.Failed, want)
		})
	}
}

// A broker that is not reached is said to be not gone; the record stands.
func TestRevokeWithoutBroker(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.SetDown(true)
		rev, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "r")
		if err != nil || rev.Receipt != "" || rev.Grant.RevokedAt.IsZero() {
			t.Fatalf("revocation %+v, %v", rev, err)
		}
		for _, l := range rev.Layers {
			if l.Name == "broker" && l.Gone {
				t.Error("a broker that was not reached is said to be gone")
			}
		}
	})
}

// A lease under revoked authority is not renewed, and its turn ends.
func TestRevokeEndsLeases(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "coder"})
		if err != nil {
			t.Fatal(err)
		}
		turn, h := begun(t, w, r)
		if resp := r.Renew(); len(resp.Leases) != 1 {
			t.Fatalf("the positive twin: %+v", resp)
		}
		if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "r"); err != nil {
			t.Fatal(err)
		}
		resp, err := w.Engine.Renew(ctx(), r.Caller(), &runnerv1.RenewRequest{Epoch: r.Epoch(), Leases: []*runnerv1.HeldLease{{AttemptId: h.ID.String(), Fence: int64(h.Fence)}}})
		if err != nil || len(resp.Leases) != 0 {
			t.Errorf("renewed under a revoked grant: %+v, %v", resp, err)
		}
		wantState(t, w, turn.ID, session.Failed, "grant_revoked")
		w.Settle()
		if len(r.Stopped) != 1 {
			t.Errorf("the runner was told to stop %v", r.Stopped)
		}
	})
}

func TestRevokeRunner(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		other := w.Join("desktop", "files.read")
		other.Claims = false
		if _, err := w.Engine.RevokeRunner(ctx(), w.Me(), r.ID, "stolen"); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if r.Fenced == "" {
			t.Error("the runner was not told")
		}
		if a := attempt(t, w, h.ID); !a.State.Terminal() {
			t.Errorf("its attempt is %s", a.State)
		}
		wantState(t, w, turn.ID, session.Received, "") // another machine takes it
		_, err := w.Engine.Connect(ctx(), r.Caller(), "http/3", &runnerv1.ConnectRequest{CapabilityVersion: 1, OldestCapabilityVersion: 1, BootNonce: "b"})
		wantCode(t, "a revoked runner connects", err, protocol.CodeUnauthenticated)
		other.Claims = true
		w.Sleep(30 * time.Second)
		wantState(t, w, turn.ID, session.RunningModel, "")
	})
}

// INV-16: a capability of an earlier generation never works, and what runs under
// one ends; the session goes on with the next turn.
func TestRecreateInstance(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("fresh")))
		s := w.Session("assistant")
		turn := w.Submit(s, "first")
		w.Settle()
		inst, err := w.Engine.RecreateInstance(ctx(), w.Me(), "assistant")
		if err != nil || inst.Generation != 2 {
			t.Fatalf("%+v, %v", inst, err)
		}
		wantState(t, w, turn.ID, session.Failed, "instance_recreated")
		next := w.Submit(s, "second")
		w.Settle()
		wantState(t, w, next.ID, session.Completed, "")
	})
}

func TestDisablePrincipal(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write)))
		_, admin := w.Principal("local", "root", true)
		turn := w.Submit(w.Session("assistant"), "first")
		w.Settle()
		_, bob := w.Principal("local", "bob", false)
		_, err := w.Engine.DisablePrincipal(ctx(), et.Caller(bob), w.Person.ID)
		if err == nil {
			t.Error("a person who is no admin disabled another")
		}
		if _, err := w.Engine.DisablePrincipal(ctx(), et.Caller(admin), w.Person.ID); err != nil {
			t.Fatal(err)
		}
		wantState(t, w, turn.ID, session.Failed, "principal_disabled")
	})
}

// The last admin stays: nobody could mend the tenant after it. With two, either
// goes, and the other is then the last.
func TestLastAdminStays(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Principal("elsewhere", "root", true) // an admin of another tenant is no help
		_, bob := w.Principal("local", "bob", false)
		_, err := w.Engine.DisablePrincipal(ctx(), w.Me(), w.Person.ID)
		wantCode(t, "the only admin", err, protocol.CodeFailedPrecondition)
		if err != nil && !strings.Contains(err.Error(), "bivouac principal add NAME --admin") {
			t.Errorf("no remedy: %v", err)
		}
		if _, err := w.Engine.DisablePrincipal(ctx(), w.Me(), bob.ID); err != nil {
			t.Errorf("one who is no admin: %v", err)
		}
		_, second := w.Principal("local", "second", true)
		if _, err := w.Engine.DisablePrincipal(ctx(), w.Me(), w.Person.ID); err != nil {
			t.Fatalf("one of two: %v", err)
		}
		_, err = w.Engine.DisablePrincipal(ctx(), et.Caller(second), second.ID)
		wantCode(t, "the one that is left", err, protocol.CodeFailedPrecondition)
		if _, err := w.Engine.DisablePrincipal(ctx(), et.Caller(second), w.Person.ID); err != nil {
			t.Errorf("one that is disabled already: %v", err)
		}
	})
}

// A second revocation says that it is one, and since when.
func TestRevokeTwice(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		first, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "r")
		if err != nil || first.Before {
			t.Fatalf("%+v, %v", first, err)
		}
		w.Sleep(time.Minute)
		again, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "r")
		if err != nil || !again.Before || !again.Grant.RevokedAt.Equal(first.Grant.RevokedAt) {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

// INV-13: what ends at the authority ends here like a revocation, with a receipt
// that is kept; a grant that is not stored yet is to be told again.
func TestGrantEndedAtTheAuthority(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: []string{"weather-token"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "first")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")

		unknown := engine.EndedGrant{ID: protocol.GrantID("grt_01h00000000000000000000000"), Seen: time.Now(), How: "its token is gone"}
		if settled, err := w.Engine.GrantEnded(ctx(), unknown); settled || err != nil {
			t.Errorf("a grant that is not stored: settled %v, %v", settled, err)
		}
		wantState(t, w, turn.ID, session.WaitingApproval, "")

		ended := engine.EndedGrant{ID: g.ID, Seen: time.Now(), How: "its token is gone"}
		for range 2 {
			if settled, err := w.Engine.GrantEnded(ctx(), ended); !settled || err != nil {
				t.Errorf("settled %v, %v", settled, err)
			}
		}
		wantState(t, w, turn.ID, session.Failed, "grant_revoked")
		// A grant that the broker does not hold, as after a move to another authority, is
		// refused there already.
		moved, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.Disown(moved.ID)
		rev, err := w.Engine.RevokeGrant(ctx(), w.Me(), moved.ID, "")
		if err != nil || slices.ContainsFunc(rev.Layers, func(l engine.Layer) bool { return !l.Gone }) {
			t.Errorf("a grant that the broker does not hold: %+v, %v", rev.Layers, err)
		}

		// A revocation whose server died before it was signed gets its receipt later, and
		// keeps its reason.
		unsigned, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
			_, err := tx.RevokeGrant(unsigned.ID, "stolen laptop")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		ended.ID = unsigned.ID
		if settled, err := w.Engine.GrantEnded(ctx(), ended); settled || err != nil {
			t.Errorf("a revocation under way: settled %v, %v", settled, err)
		}
		w.Sleep(time.Minute)
		if settled, err := w.Engine.GrantEnded(ctx(), ended); !settled || err != nil {
			t.Errorf("a revocation without a receipt: settled %v, %v", settled, err)
		}
		err = w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error {
			kept, err := tx.Grant(unsigned.ID)
			if kept.Receipt == "" || kept.RevokedWhy != "stolen laptop" {
				t.Errorf("kept: %+v", kept)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		err = w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error {
			kept, err := tx.Grant(g.ID)
			if kept.Receipt == "" || kept.RevokedAt.IsZero() || !strings.Contains(kept.RevokedWhy, "its token is gone") {
				t.Errorf("kept: %+v", kept)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

package engine_test

import (
	"errors"
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

// quotas of one default a scope.
func quotas(scope string, q policy.Quota) et.Option {
	return et.WithQuotas(policy.Quotas{Default: map[string]policy.Quota{scope: q}})
}

// wantQuota holds that a prompt is refused by a quota, with the time after which it
// may be sent again and the command that shows why.
func wantQuota(t *testing.T, what string, err error, code protocol.Code, least, most time.Duration) {
	t.Helper()
	wantCode(t, what, err, code)
	var e *protocol.Error
	if !errors.As(err, &e) || e.RetryAfter < least || e.RetryAfter > most || !strings.Contains(e.Message, "bivouac quota") {
		t.Errorf("%s: %v, again after %v, want %s to %s", what, err, e, least, most)
	}
}

func prompt(s session.Session, text string) engine.NewTurn {
	return engine.NewTurn{Session: s.ID, MessageID: text, Prompt: text}
}

// The active turns of one person are bounded over all of that person's sessions:
// what is over waits, is told why, and begins when another ends. Nobody else waits.
func TestActiveTurnsAreBounded(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Calls(write), et.Text("bob's"), et.Text("one"), et.Text("third")))
		_, bob := w.Principal("local", "bob", false)
		one, two := w.Submit(w.Session("assistant"), "one"), w.Submit(w.Session("assistant"), "two")
		w.Settle()
		three := w.Submit(w.Session("assistant"), "three")
		theirs, err := w.Engine.CreateSession(ctx(), et.Caller(bob), engine.NewSession{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		other, err := submit(w, et.Caller(bob), prompt(theirs, "mine"))
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		wantState(t, w, one.ID, session.WaitingApproval, "")
		wantState(t, w, two.ID, session.WaitingApproval, "")
		wantState(t, w, three.ID, session.Queued, "")
		wantState(t, w, other.Turn.ID, session.Completed, "")
		x, err := w.Engine.Explain(ctx(), w.Me(), three.ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "quota of principal local/ada: 2 turns are active") || len(x.Remedies) == 0 || x.Remedies[0] != "bivouac quota" {
			t.Errorf("explained as %+v, %v", x, err)
		}
		w.Restart()
		r.Connect()
		w.Settle()
		wantState(t, w, three.ID, session.Queued, "")
		approve(t, w, one.ID, true)
		w.Settle()
		wantState(t, w, one.ID, session.Completed, "")
		wantState(t, w, three.ID, session.Completed, "")
	}, quotas(policy.ScopePrincipal, policy.Quota{MaxActiveTurns: 2}))
}

// The queue of an agent and the prompts within a minute are bounded, with when to
// come again; another agent takes them.
func TestQueueAndRateAreBounded(t *testing.T) {
	all := et.WithQuotas(policy.Quotas{Default: map[string]policy.Quota{policy.ScopePrincipal: {MaxTurnsPerMinute: 4}},
		Named: map[string]map[string]policy.Quota{policy.ScopeAgent: {"local/assistant": {MaxQueuedTurns: 2}}}})
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.SetDown(true)
		w.Sleep(40 * time.Second) // nothing is activated
		w.Submit(w.Session("assistant"), "1")
		w.Submit(w.Session("assistant"), "2")
		_, err := submit(w, w.Me(), prompt(w.Session("assistant"), "3"))
		wantQuota(t, "the agent's queue", err, protocol.CodeQueueFull, time.Millisecond, time.Minute)
		coder := w.Session("coder")
		time.Sleep(10 * time.Second)
		w.Submit(coder, "4")
		w.Submit(coder, "5")
		_, err = submit(w, w.Me(), prompt(coder, "6"))
		wantQuota(t, "a fifth in a minute", err, protocol.CodeRateLimited, 49*time.Second, 50*time.Second)
		w.Restart()
		_, err = submit(w, w.Me(), prompt(coder, "6"))
		wantCode(t, "after a restart", err, protocol.CodeRateLimited)
		time.Sleep(50 * time.Second)
		if _, err := submit(w, w.Me(), prompt(coder, "6")); err != nil {
			t.Errorf("after the time that was named: %v", err)
		}
	}, all)
}

// What a tenant spends on a day is bounded over restarts: a turn may use what is
// left of the day, then none begins until the next one. Another tenant is not
// touched.
func TestSpendingOfADayIsBounded(t *testing.T) {
	for name, q := range map[string]policy.Quota{"tokens": {MaxTokensPerDay: 20}, "cost": {MaxCostPerDayMicroUSD: 20}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				for used := 0; ; used++ {
					w.Broker.Say(et.Script(et.Text("hi")))
					s := w.Session("assistant")
					a, err := submit(w, w.Me(), prompt(s, "p"))
					if err != nil {
						if used == 0 {
							t.Fatalf("the first of a day: %v", err)
						}
						wantQuota(t, "a day that is used up", err, protocol.CodeBudgetExhausted, time.Second, 24*time.Hour)
						break
					}
					if used > 20 {
						t.Fatal("nothing bounds the day")
					}
					w.Sleep(10 * time.Second) // draws are asked for
					if got := w.Turn(a.Turn.ID); !got.State.Terminal() {
						t.Fatalf("the turn is %s", got.State)
					}
				}
				w.Restart()
				r.Connect()
				w.Settle()
				s := w.Session("assistant")
				_, err := submit(w, w.Me(), prompt(s, "p"))
				wantCode(t, "after a restart", err, protocol.CodeBudgetExhausted)
				uses, err := w.Engine.QuotasOf(ctx(), w.Me(), "")
				if err != nil || len(uses) != 1 || uses[0].Name != "local" || uses[0].Quota.Activates(uses[0].Consumed, time.Now()) == nil {
					t.Errorf("it shows %+v, %v", uses, err)
				}

				elsewhere, eve := w.Principal("elsewhere", "eve", true)
				if err := w.Store.View(ctx(), store.AsPrincipal(elsewhere.ID, eve.ID, true), func(tx *store.Tx) error {
					c, err := tx.Consumption(policy.Scope{Tenant: elsewhere.ID})
					if c != (policy.Consumption{}) {
						t.Errorf("another tenant has used %+v", c)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Until(time.Now().UTC().Truncate(24 * time.Hour).Add(24*time.Hour + time.Second)))
				w.Settle()
				w.Broker.Say(et.Script(et.Text("a new day")))
				turn := w.Submit(s, "p")
				w.Settle()
				wantState(t, w, turn.ID, session.Completed, "")
			}, quotas(policy.ScopeTenant, q))
		})
	}
}

// INV-10: what is left of a day narrows the turn that begins.
func TestDayNarrowsTheTurn(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("hi")))
		turn := w.Submit(w.Session("assistant"), "p")
		w.Settle()
		got := wantState(t, w, turn.ID, session.Completed, "")
		snap, err := policy.DecodeSnapshot(got.Snapshot, got.SnapshotDigest)
		if err != nil || snap.Agent.Limits.MaxTokens != 5000 || snap.Agent.Limits.MaxCostMicroUSD != 700 {
			t.Errorf("limits %+v, %v", snap.Agent.Limits, err)
		}
	}, quotas(policy.ScopeAgent, policy.Quota{MaxTokensPerDay: 5000, MaxCostPerDayMicroUSD: 700}))
}

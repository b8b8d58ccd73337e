package harness_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge"
	"bivouac/edge/device"
	"bivouac/edge/owner"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// keyTTL is how long the owner of the machine may think.
const keyTTL = 5 * time.Minute

// underKey has a write that alice approved at the server wait for the owner of the
// machine, and checks that nobody at the server can do anything about it.
func underKey(t *testing.T, body func(t *testing.T, w *harness.World, k keyedTurn)) {
	underKeyOf(t, assistant, body)
}

// underKeyOf is underKey with another definition of the assistant.
func underKeyOf(t *testing.T, agent string, body func(t *testing.T, w *harness.World, k keyedTurn)) {
	harness.Test(t, harness.Options{Script: scribe}, func(t *testing.T, w *harness.World) {
		k := keyedTurn{w: w, alice: w.Person("alice")}
		k.a = w.EdgeWith("a", harness.EdgeOptions{SecondKeys: []owner.SecondKey{{Over: device.Write, TTL: keyTTL}}})
		k.alice.Apply(agent)
		k.grant = k.alice.Grant("assistant").GetId()
		k.session = k.alice.Open("assistant")
		k.turn = k.alice.Submit(k.session, "m1", "write it")
		asked := k.alice.AwaitApproval()
		k.alice.Decide(asked, true)
		k.q = k.a.AwaitQuestion()
		if k.q.ApprovalDigest != asked.GetDigest() || k.q.ApprovedBy != "alice" || k.q.Session != k.session || k.q.Turn != k.turn || k.q.Principal != "alice" {
			t.Errorf("the owner is shown %+v", k.q)
		}
		w.Until("the server knows", time.Minute, func() bool { return k.has("owner.requested", k.q.Digest) })
		body(t, w, k)
	})
}

type keyedTurn struct {
	w             *harness.World
	alice         *harness.Person
	a             *harness.Edge
	grant         string
	session, turn string
	q             edge.Question
}

func (k keyedTurn) has(kind, data string) bool {
	for _, e := range k.alice.EventsOf(k.session) {
		if e.GetType() == kind && strings.Contains(e.GetData(), data) {
			return true
		}
	}
	return false
}

func (k keyedTurn) explain(t *testing.T) *apiv1.ExplainResponse {
	t.Helper()
	x, err := k.alice.Turns.Explain(t.Context(), &apiv1.ExplainRequest{Id: k.turn})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// clean: nothing is unknown, nothing waits, and the machine has nothing left.
func (k keyedTurn) clean(t *testing.T, wrote bool) {
	t.Helper()
	k.w.Until("the machine is tidy", 20*time.Minute, func() bool { return len(k.a.Status().Attempts)+len(k.a.Questions()) == 0 })
	if got := k.a.Read("once.txt"); (got == "written\n") != wrote {
		t.Errorf("the file holds %q", got)
	}
	if n := len(unknown(t, k.alice)); n != 0 {
		t.Errorf("%d outcomes are unknown, and nothing ran", n)
	}
	if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Approve: true}); err == nil {
		t.Error("it can be decided again")
	}
}

// brief is an assistant with two minutes to work.
var brief = strings.Replace(assistant, "limits { max_queued = 2 }", "limits {\n    max_queued = 2\n    max_wall   = \"2m\"\n  }", 1)

// INV-6: the owner of a machine decides there, over what was approved here: yes, no,
// or by saying nothing. Meanwhile the turn says for whom it waits and its wall time
// stands still; the decision is evidence.
func TestOwnersSecondKey(t *testing.T) {
	for _, c := range []struct {
		name     string
		decide   bool
		approve  bool
		decision string
		told     string
	}{
		{"approved", true, true, "approved", `"digest"`},
		{"denied", true, false, "denied", "The owner of the machine denied this call. It did not run. Their reason: not today"},
		{"expired", false, false, "expired", "did not approve this call in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			underKeyOf(t, brief, func(t *testing.T, w *harness.World, k keyedTurn) {
				time.Sleep(4 * time.Minute) // longer than the agent's wall time, and many leases
				x := k.explain(t)
				if !strings.Contains(x.GetWaitingFor(), `the owner of machine "a"`) || !strings.Contains(fmt.Sprint(x.GetRemedies()), "bivouac-edge approve "+k.q.Attempt.String()) {
					t.Errorf("explained as %q, %v", x.GetWaitingFor(), x.GetRemedies())
				}
				if got := k.a.Read("once.txt"); got != "" {
					t.Fatalf("written before the owner decided: %q", got)
				}
				if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.ApprovalDigest, Approve: true}); err == nil {
					t.Error("another digest was taken")
				}
				if c.decide {
					d := edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Approve: c.approve}
					if !c.approve {
						d.Reason = "not today"
					}
					if err := k.a.Turn(d); err != nil {
						t.Fatal(err)
					}
				}
				if got := k.alice.Completed(k.turn).GetAnswer(); !strings.Contains(got, c.told) {
					t.Errorf("the model was told %q", got)
				}
				if !k.has("owner.decided", `"decision":"`+c.decision+`"`) || !k.has("owner.decided", k.q.Digest) || c.decide != k.has("owner.decided", `"by":"owner"`) {
					t.Error("the events lack the evidence of the decision")
				}
				k.clean(t, c.approve)
			})
		})
	}
}

// A question ends with its turn and with the authority behind it, at once and
// without an effect, also when its machine is away; what the owner says later counts
// for nothing.
func TestSecondKeyEndsWithItsTurn(t *testing.T) {
	cancel := func(t *testing.T, k keyedTurn) {
		if _, err := k.alice.Turns.CancelTurn(t.Context(), &apiv1.CancelTurnRequest{TurnId: k.turn}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		end   func(t *testing.T, w *harness.World, k keyedTurn)
		state string
	}{
		{"cancelled", func(t *testing.T, _ *harness.World, k keyedTurn) { cancel(t, k) }, "CANCELLED"},
		{"cancelled while the machine is away", func(t *testing.T, w *harness.World, k keyedTurn) {
			w.Partition("a")
			if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Approve: true}); err != nil {
				t.Fatal(err)
			}
			cancel(t, k)
			w.Heal("a")
		}, "CANCELLED"},
		{"the grant is revoked", func(t *testing.T, _ *harness.World, k keyedTurn) {
			if _, err := k.alice.Grants.RevokeGrant(t.Context(), &apiv1.RevokeGrantRequest{GrantId: k.grant, Reason: "enough"}); err != nil {
				t.Fatal(err)
			}
		}, "FAILED"},
		{"the session is closed", func(t *testing.T, _ *harness.World, k keyedTurn) {
			if _, err := k.alice.Sessions.CloseSession(t.Context(), &apiv1.CloseSessionRequest{SessionId: k.session, Now: true}); err != nil {
				t.Fatal(err)
			}
		}, "FAILED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			underKey(t, func(t *testing.T, w *harness.World, k keyedTurn) {
				time.Sleep(time.Minute)
				c.end(t, w, k)
				if got := k.alice.Ended(k.turn).GetState(); got != c.state {
					t.Errorf("the turn is %s", got)
				}
				k.clean(t, false)
			})
		})
	}
}

// The machine's daemon restarts, and the server does: the question is the same and
// the effect happens once. A machine that stays away has done nothing, and that is
// known. INV-5.
func TestSecondKeyOutlivesRestarts(t *testing.T) {
	t.Run("of both", func(t *testing.T) {
		underKey(t, func(t *testing.T, w *harness.World, k keyedTurn) {
			k.a.StopDaemon()
			time.Sleep(time.Minute) // its lease lapses
			k.a.StartDaemon()
			k.a.AwaitConnected()
			w.RestartServer()
			k.a.AwaitConnected()
			if again := k.a.AwaitQuestion(); again.Digest != k.q.Digest {
				t.Fatalf("after restarts the owner is asked %+v", again)
			}
			if got := k.alice.Turn(k.turn).GetState(); got != "RUNNING_ACTION" {
				t.Errorf("the turn is %s", got)
			}
			if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Approve: true}); err != nil {
				t.Fatal(err)
			}
			k.alice.Completed(k.turn)
			k.clean(t, true)
		})
	})
	t.Run("of a machine that stays away", func(t *testing.T) {
		underKey(t, func(t *testing.T, w *harness.World, k keyedTurn) {
			w.KillEdge("a")
			got := k.alice.Completed(k.turn)
			if !strings.Contains(got.GetAnswer(), "It did not run: its machine went away while it waited for its owner") {
				t.Errorf("the model was told %q", got.GetAnswer())
			}
			k.a = w.ReviveEdge("a")
			k.clean(t, false)
		})
	})
}

// A whole turn waits before its machine claims it: no lease, no sandbox, no slot. With
// a yes it runs; without one it is not placed, and says why; and a machine whose owner
// asks for nothing takes it at once. INV-7, INV-11.
func TestOwnersSecondKeyOverTurns(t *testing.T) {
	over := []owner.SecondKey{{Over: secondkey.Turn, TTL: time.Hour}}
	begin := func(t *testing.T, w *harness.World) keyedTurn {
		k := keyedTurn{w: w, alice: w.Person("alice"), a: w.EdgeWith("a", harness.EdgeOptions{SecondKeys: over})}
		k.alice.Apply(coder)
		k.session = k.alice.Open("coder")
		k.turn = k.alice.Submit(k.session, "m1", "do it")
		return k
	}
	t.Run("approved", func(t *testing.T) {
		harness.Test(t, harness.Options{Script: twoCommands}, func(t *testing.T, w *harness.World) {
			k := begin(t, w)
			k.q = k.a.AwaitQuestion()
			time.Sleep(30 * time.Second)
			if n := len(k.a.Status().Attempts); n != 0 || k.a.Supervisors() != 0 {
				t.Errorf("%d leases are held while the owner thinks", n)
			}
			if k.q.Principal != "alice" || k.q.Agent != "coder" || !strings.Contains(k.q.Arguments, "do it") {
				t.Errorf("the owner is shown %+v", k.q)
			}
			w.Until("it is explained", time.Minute, func() bool {
				return strings.Contains(fmt.Sprint(k.explain(t).GetRemedies()), "bivouac-edge approve "+k.q.Attempt.String())
			})
			if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Approve: true}); err != nil {
				t.Fatal(err)
			}
			k.alice.Completed(k.turn)
			if !k.has("owner.decided", `"by":"owner"`) || !k.has("owner.decided", k.q.Digest) {
				t.Error("the events lack the evidence of the decision")
			}
		})
	})
	t.Run("denied", func(t *testing.T) {
		harness.Test(t, harness.Options{Script: twoCommands}, func(t *testing.T, w *harness.World) {
			k := begin(t, w)
			k.q = k.a.AwaitQuestion()
			if err := k.a.Turn(edge.Decision{Attempt: k.q.Attempt, Digest: k.q.Digest, Reason: "not today"}); err != nil {
				t.Fatal(err)
			}
			if got := k.alice.Ended(k.turn); got.GetReason() != "not_placed" || !strings.Contains(got.GetMessage(), "its owner denied it: not today") {
				t.Errorf("the turn ended as %s: %s", got.GetReason(), got.GetMessage())
			}
		})
	})
	t.Run("another machine takes it", func(t *testing.T) {
		harness.Test(t, harness.Options{Script: twoCommands}, func(t *testing.T, w *harness.World) {
			w.Edge("b")
			k := begin(t, w)
			k.alice.Completed(k.turn)
		})
	})
}

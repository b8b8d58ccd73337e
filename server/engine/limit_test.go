package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// applied stores a changed assistant.
func applied(t *testing.T, w *et.World, old, new string) {
	t.Helper()
	src := strings.Replace(et.Assistant, old, new, 1)
	if src == et.Assistant {
		t.Fatalf("the assistant has no %q", old)
	}
	if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "a.hcl", Source: []byte(src)}); err != nil {
		t.Fatal(err)
	}
}

// A model that cannot answer now is asked again after growing pauses, and a turn
// that it never answers ends with the reason.
func TestModelRetries(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		busy := et.Fail(protocol.Errorf(protocol.CodeUnavailable, "busy"))
		w.Broker.Say(et.Script(busy, busy, et.Text("at last")))
		turn := w.Submit(w.Session("assistant"), "hello")
		w.Settle()
		wantState(t, w, turn.ID, session.RunningModel, "")
		if took := until(t, w, time.Minute, func() bool { return w.Turn(turn.ID).State.Terminal() }); took != 1500*time.Millisecond {
			t.Errorf("two pauses took %s", took)
		}
		wantState(t, w, turn.ID, session.Completed, "")

		w.Broker.Say(et.Script(et.Fail(protocol.Errorf(protocol.CodeUnauthenticated, "no key"))))
		turn = w.Submit(w.Session("assistant"), "hello")
		w.Settle()
		wantState(t, w, turn.ID, session.Failed, "model_auth")
	})
}

// INV-19: what a turn reserves never exceeds its budget, over top-ups and over a
// broker that restarts and forgets.
func TestBudget(t *testing.T) {
	slices := func(t *testing.T, w *et.World, id protocol.TurnID) (all []policy.Slice, sum int64) {
		t.Helper()
		err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
			all, err = tx.SlicesOfTurn(id)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.ClosedAt.IsZero() {
				sum += max(s.CeilingMicroUSD, s.DrawnMicroUSD)
			} else {
				sum += s.DrawnMicroUSD
			}
		}
		return all, sum
	}
	forecast := func(n int) et.Answer {
		return et.Calls(et.Call{ID: string(rune('a' + n)), Alias: "forecast", Arguments: `{"city":"Oslo"}`})
	}
	inWorld(t, func(w *et.World, _ *et.Runner) {
		// A call draws 10; the budget of 40 is reserved by portions of 5 and doublings.
		applied(t, w, `limits    { max_queued = 3 }`, `limits { max_cost_usd = 0.00004 }`)
		w.Broker.Say(et.Script(forecast(0), forecast(1), forecast(2), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "spend")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if all, sum := slices(t, w, turn.ID); len(all) != 1 || sum > 40 || sum < 30 {
			t.Errorf("reserved %d in %d slices", sum, len(all))
		}
		w.Sleep(5 * time.Second)
		if all, _ := slices(t, w, turn.ID); all[0].ClosedAt.IsZero() || all[0].DrawnMicroUSD != 40 {
			t.Errorf("the slice of an ended turn: %+v", all[0])
		}

		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn = w.Submit(w.Session("assistant"), "over a restart")
		w.Settle()
		w.Broker.Restart("boot-2", false)
		w.Sleep(8 * time.Second)
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if all, sum := slices(t, w, turn.ID); len(all) != 2 || sum > 40 {
			t.Errorf("reserved %d in %d slices", sum, len(all))
		}
	})
}

// A broker that has just restarted costs no turn: neither the one that runs nor
// one that begins before the server has heard of the restart.
func TestBrokerRestartsUnderTurns(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "w", Alias: "files_write", Arguments: `{"content":"x","path":"home/x.txt"}`}), et.Text("done")))
		running := w.Submit(w.Session("assistant"), "runs")
		w.Settle()
		w.Broker.Restart("boot-2", false)
		approve(t, w, running.ID, true)
		w.Broker.Say(et.Script(et.Text("done"), et.Text("done")))
		begins := w.Submit(w.Session("assistant"), "begins")
		w.Sleep(10 * time.Second)
		wantState(t, w, running.ID, session.Completed, "")
		wantState(t, w, begins.ID, session.Completed, "")
	})
}

// INV-7, INV-19: a turn that waits for a person holds no slice, so a broker that
// restarts again and again meanwhile costs it nothing, and it goes on.
func TestBrokerRestartsWhileATurnWaits(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		applied(t, w, `limits    { max_queued = 3 }`, `limits { max_cost_usd = 0.00004 }`)
		slicesOf := func(id protocol.TurnID) (all []policy.Slice) {
			t.Helper()
			if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
				all, err = tx.SlicesOfTurn(id)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return all
		}
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		w.Sleep(2 * time.Second)
		if got := wantState(t, w, turn.ID, session.WaitingApproval, ""); got.Slice != "" {
			t.Errorf("a waiting turn holds slice %s", got.Slice)
		}
		if all := slicesOf(turn.ID); len(all) != 1 || all[0].ClosedAt.IsZero() || all[0].DrawnMicroUSD != 10 {
			t.Errorf("while it waits: %+v", all)
		}
		for _, boot := range []string{"boot-2", "boot-3"} {
			w.Broker.Restart(boot, false)
			w.Sleep(20 * time.Second)
			wantState(t, w, turn.ID, session.WaitingApproval, "")
		}
		approve(t, w, turn.ID, true)
		w.Sleep(5 * time.Second)
		wantState(t, w, turn.ID, session.Completed, "")
		all := slicesOf(turn.ID)
		if len(all) != 2 || all[1].BrokerBoot != "boot-3" || all[0].DrawnMicroUSD+all[1].DrawnMicroUSD != 20 || len(r.Writes) != 1 {
			t.Errorf("after the approval: %+v, writes %v", all, r.Writes)
		}
	})
}

// INV-18: the slice of a turn that begins to wait while the broker is away is
// closed when it is back; until then the whole of it counts, and the turn waits.
func TestSliceIsClosedWhenTheBrokerIsBack(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(func(c context.Context, r *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			w.Broker.SetDown(true)
			return et.Script(et.Calls(write))(c, r)
		})
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		approve(t, w, turn.ID, true)
		w.Sleep(10 * time.Second)
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		w.Broker.Say(et.Script(et.Text("done")))
		w.Broker.SetDown(false)
		w.Sleep(time.Minute)
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

// INV-11: a route that may not receive the data is refused before the first call.
func TestDataBoundary(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		for route, reason := range map[string]string{"public": "policy_denied", "nowhere": "model_not_found"} {
			applied(t, w, `route = "scripted"`, `route = "`+route+`"`)
			turn := w.Submit(w.Session("assistant"), "private")
			w.Settle()
			wantState(t, w, turn.ID, session.Failed, reason)
		}
		if n := len(w.Broker.Requests()); n != 0 {
			t.Errorf("%d model calls", n)
		}
	})
}

func TestDeadlines(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		applied(t, w, `limits    { max_queued = 3 }`, `
			limits {
			  max_wall  = "2m"
			  queue_ttl = "3m"
			}`)
		r.Claims = false // a read that no machine takes
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "1", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}), et.Text("x")))
		s := w.Session("assistant")
		turn, waits := w.Submit(s, "first"), w.Submit(s, "second")
		w.Settle()
		took := until(t, w, 3*time.Minute, func() bool { return w.Turn(turn.ID).State.Terminal() })
		wantState(t, w, turn.ID, session.Failed, "max_wall")
		if took != 2*time.Minute {
			t.Errorf("ended after %s", took)
		}
		w.Settle()
		if got := w.Turn(waits.ID); got.State == session.Queued {
			t.Errorf("the next turn is still %s", got.State)
		}

		w.Broker.SetDown(true)
		w.Sleep(40 * time.Second)
		turn = w.Submit(w.Session("assistant"), "never")
		w.Sleep(3*time.Minute + time.Second)
		wantState(t, w, turn.ID, session.Cancelled, "queue_deadline")
	})
}

// What a tool answers is redacted by patterns and bounded before it is stored.
func TestResultsAreRedactedAndBounded(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		applied(t, w, `limits    { max_queued = 3 }`, `limits { max_result_bytes = 2000 }`)
		w.Broker.Serve("http:forecast", func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "text/plain",
				Body: []byte("token ghp_" + strings.Repeat("a", 40) + " " + strings.Repeat("long ", 1000))}, nil
		})
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "1", Alias: "forecast", Arguments: `{"city":"x"}`}), et.Text("ok")))
		turn := w.Submit(w.Session("assistant"), "look")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); len(res.Text) > 2000 || !res.Truncated || strings.Contains(res.Text, "ghp_") || !strings.Contains(res.Text, "[redacted") {
			t.Errorf("the model saw %d bytes, truncated %v: %.80s", len(res.Text), res.Truncated, res.Text)
		}
	})
}

// INV-10: a binding that is gone narrows the running turn.
func TestAuthorityNarrowsWhileRunning(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("no machine")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
			bs, err := tx.BindingsOf(w.Person.ID)
			if err != nil {
				return err
			}
			return tx.RemoveBinding(bs[0].ID)
		})
		if err != nil {
			t.Fatal(err)
		}
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); res.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_DENIED {
			t.Errorf("the model saw %v", res)
		}
		if len(r.Writes) != 0 {
			t.Error("a write went to a machine that is not bound any more")
		}
	})
}

// With two machines the model names one, and the call goes to that one alone.
func TestMachineArgument(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		other := w.Join("desktop", "files.read")
		other.Files["home/todo.txt"] = "of the desktop"
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "1", Alias: "files_read", Arguments: `{"path":"home/todo.txt","machine":"desktop"}`}), et.Text("ok")))
		turn := w.Submit(w.Session("assistant"), "read")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if res := lastResult(w); !strings.Contains(res.GetText(), "of the desktop") {
			t.Errorf("the model saw %v", res)
		}
		if a := w.Actions(turn.ID)[0]; a.Destination != other.ID.String() || strings.Contains(a.Arguments, "machine") {
			t.Errorf("action %+v", a)
		}
	})
}

func TestSessionExpires(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		applied(t, w, `limits    { max_queued = 3 }`, `limits { session_idle = "1h" }`)
		w.Broker.Say(et.Script(et.Text("hi"), et.Text("yes")))
		s := w.Session("assistant")
		w.Submit(s, "hello")
		w.Settle()
		time.Sleep(59 * time.Minute)
		w.Settle()
		if _, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "x", Prompt: "still there?"}); err != nil {
			t.Fatalf("before its end: %v", err)
		}
		w.Settle()
		time.Sleep(61 * time.Minute)
		w.Settle()
		_, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "y", Prompt: "and now?"})
		wantCode(t, "an idle session", err, protocol.CodeFailedPrecondition)
		if types := w.Types(s.ID); types[len(types)-1] != session.SessionClosed {
			t.Errorf("events %v", types)
		}
	})
}

// Live text reaches who watches, and a slow watcher holds nobody up.
func TestLiveText(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Text("hello there")))
		s := w.Session("assistant")
		text, stop, err := w.Engine.WatchLive(ctx(), w.Me(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		w.Submit(s, "hi")
		w.Settle()
		if got := (<-text).Text; got != "hello there" {
			t.Errorf("live %q", got)
		}
		stop()
		w.Broker.Say(et.Script(et.Text("nobody listens")))
		turn := w.Submit(s, "again")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

func TestReady(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		if err := w.Engine.Ready(context.Background()); err != nil {
			t.Errorf("ready: %v", err)
		}
		w.Broker.SetDown(true)
		w.Sleep(40 * time.Second)
		wantCode(t, "without a broker", w.Engine.Ready(context.Background()), protocol.CodeUnavailable)
	})
}

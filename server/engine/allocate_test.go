package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// inHostedWorld has a Nomad with room, one machine that it runs, and a coder whose turns
// ask for allocations of their own.
func inHostedWorld(t *testing.T, test func(w *et.World, n *et.Nomad, r *et.Runner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := et.NewNomad(10)
		w := et.New(t, et.WithNomad(n))
		if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(et.CoderOwn)}); err != nil {
			t.Fatal(err)
		}
		r := w.JoinHosted(w.Person, "alpha")
		w.Settle()
		test(w, n, r)
		for id, asked := range n.Asked {
			if asked > 1 || n.Registered[id] > 1 {
				t.Errorf("the job %s was asked for %d times, and made %d times", id, asked, n.Registered[id])
			}
		}
		if n.Peak > n.Max {
			t.Errorf("Nomad had %d jobs at once, and at most %d may be", n.Peak, n.Max)
		}
	})
}

// Whoever applies an agent is told at once that no node could hold a turn of it, with what
// the largest has; it is stored all the same, and one that fits is applied without a word.
func TestAppliedTooLarge(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, _ *et.Runner) {
		apply := func(dry bool) []string {
			t.Helper()
			applied, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(et.CoderOwn), DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			return applied.Warnings
		}
		if said := apply(false); len(said) != 0 {
			t.Errorf("there is room: %q", said)
		}
		n.Has.CPUMillis, n.Largest.CPUMillis = 1000, 1250
		for _, dry := range []bool{true, false} {
			if said := apply(dry); len(said) != 1 || !strings.Contains(said[0], "cpu_millis is 2000, and no node has more than 1250") {
				t.Errorf("there is none: %q", said)
			}
		}
	})
}

// attemptOf a turn, as it is now.
func attemptOf(t *testing.T, w *et.World, id protocol.TurnID) (a execution.Attempt) {
	t.Helper()
	err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
		turn, err := tx.Turn(id)
		if err == nil {
			a, err = tx.Attempt(turn.Attempt)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// waits submits a turn that nothing begins, and returns its attempt.
func waits(t *testing.T, w *et.World) (session.Turn, execution.Attempt) {
	t.Helper()
	turn := w.Submit(w.Session("coder"), "fix it")
	w.Settle()
	return turn, attemptOf(t, w, turn.ID)
}

// goesOn lets time pass until the runner holds the turn, and completes it.
func goesOn(t *testing.T, w *et.World, r *et.Runner, turn session.Turn) *et.Held {
	t.Helper()
	for range 30 {
		if r.Whole() != nil {
			break
		}
		w.Sleep(2 * time.Second)
	}
	h := r.Turn()
	h.Begin()
	w.Settle()
	h.Finish("done", "")
	w.Settle()
	wantState(t, w, turn.ID, session.Completed, "")
	return h
}

func wantWaiting(t *testing.T, w *et.World, turn protocol.TurnID, says string) {
	t.Helper()
	x, err := w.Engine.Explain(ctx(), w.Me(), turn.String())
	if err != nil || !strings.Contains(x.WaitingFor, says) {
		t.Errorf("%q, want %q (%v)", x.WaitingFor, says, err)
	}
}

// A turn with an allocation of its own has a job that is made once, with the limits of its
// sandbox, and taken away after its end. One that shares has none.
func TestOwnAllocation(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Slow = true
		turn, a := waits(t, w)
		if want := protocol.AllocationJob(a.ID, 1); a.State != execution.AttemptOffered || a.Allocation != want || r.Offered.Allocation != want || n.Registered[want] != 1 {
			t.Fatalf("%+v, offered %v, Nomad has %v", a, r.Offered, n.Registered)
		}
		if wait := time.UnixMicro(r.Offered.DeadlineUs).Sub(a.OfferedAt); wait != 5*time.Minute {
			t.Errorf("the offer waits %s", wait)
		}
		wantWaiting(t, w, turn.ID, "of its allocation (job "+a.Allocation+") Nomad says: no memory is left on the node of agents/bivouac-runner/edge/alpha")
		w.Sleep(time.Minute) // longer than any other offer
		if a := attemptOf(t, w, turn.ID); a.State != execution.AttemptOffered {
			t.Fatalf("%+v", a)
		}
		n.Slow = false
		h := goesOn(t, w, r, turn)
		if h.Job != a.Allocation {
			t.Errorf("it ran in %q", h.Job)
		}
		said := map[session.EventType]string{}
		for _, e := range w.Events(turn.Session) {
			said[e.Type] = e.Data["allocation"]
		}
		if said[session.AttemptClaimed] != h.Job || said[session.AttemptStarted] != h.Job {
			t.Errorf("its events name the job %q, want %s", said, h.Job)
		}
		w.Sleep(time.Minute)
		if jobs := n.Jobs(); len(jobs) != 0 {
			t.Errorf("what is left of it: %v", jobs)
		}
		if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(et.Coder)}); err != nil {
			t.Fatal(err)
		}
		if _, shared := waits(t, w); shared.Allocation != "" || shared.State != execution.AttemptClaimed || r.Offered.Allocation != "" || len(n.Registered) != 1 {
			t.Errorf("one that shares: %+v", shared)
		}
	})
}

// Whatever becomes of the request for an allocation, the turn waits, with a reason, and
// goes on under another id once it can: nothing fails by our invention.
func TestAllocationThatIsNotMade(t *testing.T) {
	forbidden := protocol.Errorf(protocol.CodePermissionDenied, "the token lacks register-job")
	rejected := protocol.Errorf(protocol.CodeFailedPrecondition, "Nomad refuses it: 400 the plan was rejected")
	away := protocol.Errorf(protocol.CodeUnavailable, "Nomad does not answer")
	for name, c := range map[string]struct {
		before func(n *et.Nomad)
		after  func(n *et.Nomad, job string)
		says   string
		jobs   int // that were made in the end
	}{
		"forbidden": {func(n *et.Nomad) { n.Refuse = forbidden }, func(n *et.Nomad, _ string) { n.Refuse = nil }, "lacks register-job", 1},
		"rejected":  {func(n *et.Nomad) { n.Refuse = rejected }, func(n *et.Nomad, _ string) { n.Refuse = nil }, "the plan was rejected", 1},
		"removed by hand": {func(n *et.Nomad) { n.Slow = true }, func(n *et.Nomad, job string) {
			n.Remove(job)
			n.Slow = false
		}, "no memory is left", 2},
		"ended before it began": {func(n *et.Nomad) { n.Slow = true }, func(n *et.Nomad, job string) {
			n.End(job, "its task failed: no such program")
			n.Slow = false
		}, "no memory is left", 2},
		"the answer is lost": {func(n *et.Nomad) { n.Lost, n.Slow = true, true }, func(n *et.Nomad, _ string) { n.Lost, n.Slow = false, false }, "no memory is left", 1},
		"away in the middle": {func(n *et.Nomad) { n.Refuse = away }, func(n *et.Nomad, _ string) { n.Refuse = nil }, "there is no such job", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
				c.before(n)
				turn, first := waits(t, w)
				wantWaiting(t, w, turn.ID, c.says)
				w.Sleep(20 * time.Second)
				wantState(t, w, turn.ID, session.Received, "")
				c.after(n, first.Allocation)
				goesOn(t, w, r, turn)
				if len(n.Registered) != c.jobs {
					t.Errorf("jobs were made: %v", n.Registered)
				}
			})
		})
	}
}

// While Nomad is away nothing is offered, what runs goes on, and nothing is asked of it in
// a hurry; when it is back everything goes on, and what ended meanwhile is taken away.
func TestNomadAway(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		running := w.Submit(w.Session("coder"), "the first")
		w.Settle()
		h := r.Turn()
		h.Begin()
		w.Settle()
		n.Down = protocol.Errorf(protocol.CodeUnavailable, "Nomad does not answer: no leader")
		w.Sleep(40 * time.Second) // by then it was asked
		turn, a := waits(t, w)
		if a.State != execution.AttemptQueued || a.Allocations != 0 {
			t.Errorf("%+v", a)
		}
		wantWaiting(t, w, turn.ID, "Nomad does not answer: no leader")
		h.Finish("done", "")
		w.Settle()
		wantState(t, w, running.ID, session.Completed, "")
		n.Down = nil
		goesOn(t, w, r, turn)
		w.Sleep(time.Minute)
		if jobs := n.Jobs(); len(jobs) != 0 {
			t.Errorf("what is left: %v", jobs)
		}
	})
}

// A job of somebody else under the id of an offer is left alone: the offer is made anew.
func TestForeignJob(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Down = protocol.Errorf(protocol.CodeUnavailable, "away")
		w.Sleep(40 * time.Second)
		turn, a := waits(t, w)
		n.Foreign = []string{protocol.AllocationJob(a.ID, 1)}
		n.Down = nil
		if h := goesOn(t, w, r, turn); h.Job != protocol.AllocationJob(a.ID, 2) || len(n.Registered) != 1 {
			t.Errorf("it ran in %s; made were %v", h.Job, n.Registered)
		}
	})
}

// A job that is removed, or ends, under a turn that has begun decides nothing: the lease
// does. INV-13.
func TestJobOfARunningTurn(t *testing.T) {
	for name, take := range map[string]func(n *et.Nomad, job string){
		"removed": func(n *et.Nomad, job string) { n.Remove(job) },
		"ended":   func(n *et.Nomad, job string) { n.End(job, "lost with its node") },
	} {
		t.Run(name, func(t *testing.T) {
			inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
				turn, h := begun(t, w, r)
				take(n, h.Job)
				w.Sleep(2 * time.Minute)
				wantState(t, w, turn.ID, session.RunningModel, "")
				goesOn(t, w, r, turn)
				if len(n.Asked) != 1 {
					t.Errorf("it was asked for %v", n.Asked)
				}
			})
		})
	}
}

// What is cancelled or unknown to the store is taken away, and what a turn needs stays.
func TestJobsThatNobodyNeeds(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		_, h := begun(t, w, r)
		n.Put("bivouac-00000000000000000000000000-1")
		n.Slow = true
		cancelled := w.Submit(w.Session("coder"), "never mind")
		w.Settle()
		if _, err := w.Engine.CancelTurn(ctx(), w.Me(), cancelled.ID); err != nil {
			t.Fatal(err)
		}
		w.Sleep(time.Minute)
		if jobs := n.Jobs(); len(jobs) != 1 || jobs[h.Job] {
			t.Errorf("there are %v", jobs)
		}
	})
}

// A leader that dies between its word and the request asks for nothing twice, and neither
// does its successor: the offer is made anew under another id. INV-14.
func TestCrashBeforeTheRequest(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		turn := w.Submit(w.Session("coder"), "fix it")
		w.Until("the intent", func() bool {
			got := w.Turn(turn.ID)
			return got.Attempt != "" && !attemptOf(t, w, turn.ID).AllocationAskedAt.IsZero()
		})
		first := attemptOf(t, w, turn.ID).Allocation
		w.Restart()
		r.Connect()
		h := goesOn(t, w, r, turn)
		if n.Asked[first] != 0 || h.Job == first {
			t.Errorf("%s was asked for %d times, and %s ran", first, n.Asked[first], h.Job)
		}
	})
}

// Jobs that wait for room hold up those that come for the same node, and too many of them
// all; when there is room everything goes on.
func TestWaitingForRoom(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Room = 0
		turn, a := waits(t, w)
		w.Sleep(2 * time.Second)
		second := w.Submit(w.Session("coder"), "and this")
		w.Settle()
		if got := attemptOf(t, w, second.ID); a.State != execution.AttemptOffered || got.State != execution.AttemptQueued {
			t.Errorf("the first is %s, the second %s", a.State, got.State)
		}
		wantWaiting(t, w, second.ID, "the node has no memory left")
		n.Room = 2
		goesOn(t, w, r, turn)
		goesOn(t, w, r, second)
		n.Room = 0
		third := w.Submit(w.Session("coder"), "and that")
		w.Sleep(16 * time.Minute)
		if got := wantState(t, w, third.ID, session.Failed, "not_placed"); !strings.Contains(got.Message, "of its allocation Nomad said: the node has no memory left") {
			t.Errorf("%q", got.Message)
		}
		if jobs := n.Jobs(); len(jobs) != 0 {
			t.Errorf("what is left of it: %v", jobs)
		}
	})
}

// Where every allocation ends before it begins, as where the program is missing, turns try
// ever more seldom, together, and go on once it is mended.
func TestNodeThatRunsNothing(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Slow = true
		var turns []session.Turn
		for i := range 8 {
			turns = append(turns, w.Submit(w.Session("coder"), fmt.Sprint("fix ", i)))
		}
		for range 60 {
			time.Sleep(time.Second)
			w.Settle()
			for job := range n.Jobs() {
				n.End(job, "no such program")
			}
		}
		if len(n.Registered) > 20 {
			t.Errorf("%d jobs were made in a minute", len(n.Registered))
		}
		wantWaiting(t, w, turns[7].ID, "no such program")
		n.Slow = false
		w.Sleep(time.Minute)
		if len(r.Turns()) != 2 {
			t.Errorf("mended: %d turns began", len(r.Turns()))
		}
	})
}

// A server without a token for Nomad says what an agent that asks for allocations lacks.
func TestNoAllocations(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Settle()
		applied, err := w.Engine.ApplyAgent(context.Background(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(et.CoderOwn)})
		if err != nil || len(applied.Warnings) != 1 || !strings.Contains(applied.Warnings[0], "starts no allocations") {
			t.Errorf("%v %v", applied.Warnings, err)
		}
		turn, a := waits(t, w)
		if a.State != execution.AttemptQueued {
			t.Errorf("%+v", a)
		}
		wantWaiting(t, w, turn.ID, "it was not started by Nomad")
	})
}

// A machine that declines each offer costs few jobs, however long it does.
func TestDeclinedOffersMakeFewJobs(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		r.Claims = false
		last := ""
		w.Submit(w.Session("coder"), "fix it")
		w.Settle()
		for range 100 {
			if r.Offered != nil && r.Offered.Allocation != last {
				last = r.Offered.Allocation
				if err := w.Engine.Decline(ctx(), r.Caller(), &runnerv1.DeclineRequest{AttemptId: r.Offered.AttemptId, Epoch: r.Epoch(), Allocation: last, Reason: "it has no room"}); err != nil {
					t.Fatal(err)
				}
			}
			w.Sleep(time.Second)
		}
		if made := len(n.Registered); made < 2 || made > 6 {
			t.Errorf("%d jobs were made in 100 s for a turn that its machine does not take", made)
		}
	})
}

// With the limits as they come, a turn for which no task comes is offered again.
func TestAllocationThatNeverComesIsOfferedAgain(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		n.Slow = true
		turn, _ := waits(t, w)
		w.Sleep(5*time.Minute + 10*time.Second)
		if now := attemptOf(t, w, turn.ID); now.Allocations < 2 {
			t.Errorf("it was not offered again: attempt %s after %d offers", now.State, now.Allocations)
		}
	})
}

// A node on which allocations end before they begin is tried ever more seldom, also beside
// one that has run there for long.
func TestSpoiledNodeBesideOneThatRuns(t *testing.T) {
	tried := map[bool]int{}
	for _, beside := range []bool{false, true} {
		inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
			if beside {
				w.Submit(w.Session("coder"), "a long one")
				for r.Whole() == nil {
					w.Sleep(2 * time.Second)
				}
				r.Turn().Begin()
				w.Settle()
			}
			n.Room = map[bool]int{true: 1}[beside] // none for another
			before := len(n.Registered)
			turn, _ := waits(t, w)
			for range 100 {
				if a := attemptOf(t, w, turn.ID); a.Allocation != "" {
					n.End(a.Allocation, "its task failed")
				}
				w.Sleep(time.Second)
			}
			tried[beside] = len(n.Registered) - before
		})
	}
	if tried[true] == 0 || tried[true] > 2*tried[false] {
		t.Errorf("%d jobs beside one that runs, %d without it", tried[true], tried[false])
	}
}

package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
)

// offeredTwice has a turn whose first allocation ended before it began and that is offered
// a second one to the same machine, which has not claimed it.
func offeredTwice(t *testing.T, w *et.World, n *et.Nomad, r *et.Runner) (first, second execution.Attempt) {
	t.Helper()
	n.Slow = true
	turn, first := waits(t, w)
	n.End(first.Allocation, "its task failed")
	for range 300 {
		if second = attemptOf(t, w, turn.ID); second.State == execution.AttemptOffered && second.Allocation != first.Allocation {
			w.Settle()
			return first, second
		}
		w.Sleep(time.Second)
	}
	t.Fatalf("it is not offered again: %+v", second)
	return first, second
}

// A machine is told of an offer with an allocation that the server takes back, by its job:
// it has a slot for it. Of one that was claimed, or that the machine starts itself, nothing
// is said.
func TestOfferTakenBackIsTold(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		r.Acks = false
		first, second := offeredTwice(t, w, n, r)
		if !slices.Contains(r.Stopped, first.ID.String()) {
			t.Fatalf("the machine waits on for %s until its deadline, and was told nothing", first.Allocation)
		}
		var offers, stops []string
		items, err := w.Engine.Mail(ctx(), r.Caller(), r.Epoch(), 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range items {
			if o := m.GetOffer(); o != nil {
				offers = append(offers, o.Allocation)
			}
			if s := m.GetStop(); s != nil {
				stops = append(stops, s.Allocation)
			}
		}
		if !slices.Equal(offers, []string{second.Allocation}) || !slices.Equal(stops, []string{first.Allocation}) {
			t.Errorf("who asks for its deliveries again gets the offers %v and the ends of %v", offers, stops)
		}
		n.Slow = false
		told := len(r.Stopped)
		for range 30 {
			if r.Whole() != nil {
				break
			}
			w.Sleep(2 * time.Second)
		}
		if h := r.Turn(); h.Job != second.Allocation || len(r.Stopped) != told {
			t.Errorf("it runs in %q, and the machine was told to stop %v", h.Job, r.Stopped)
		}
	})
}

// A supervisor that ended before its claim has its offer taken back with the machine's
// words and with Nomad's, as soon as it has them: the job is purged then. explain says both
// until it is offered again.
func TestEndedBeforeItsClaim(t *testing.T) {
	const words = "the supervisor ended; its last words: panic: nil"
	for name, c := range map[string]struct {
		happens func(w *et.World, n *et.Nomad, job string)
		says    string
	}{
		"Nomad knows later": {func(w *et.World, n *et.Nomad, job string) {
			time.AfterFunc(time.Second, func() { n.End(job, "signal 9, it had no memory left (OOM)") })
		}, words + "; Nomad says of its task: signal 9, it had no memory left (OOM)"},
		"Nomad never knows": {func(*et.World, *et.Nomad, string) {}, words + "; Nomad says of its task: nothing yet"},
		"Nomad is away": {func(_ *et.World, n *et.Nomad, _ string) {
			n.Down = protocol.Errorf(protocol.CodeUnavailable, "no leader")
		},
			words + "; Nomad says nothing: no leader"},
		"it was removed": {func(_ *et.World, n *et.Nomad, job string) { n.Remove(job) }, words + "; Nomad says of its task: it is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
				r.Claims = false
				turn, a := waits(t, w)
				if a.Allocation == "" || n.Registered[a.Allocation] != 1 {
					t.Fatalf("%+v, %v", a, n.Registered)
				}
				c.happens(w, n, a.Allocation)
				no := &runnerv1.DeclineRequest{AttemptId: a.ID.String(), Epoch: r.Epoch(), Allocation: a.Allocation, Reason: words, Ended: true}
				for range 2 { // its answer may be lost
					if err := w.Engine.Decline(ctx(), r.Caller(), no); err != nil {
						t.Fatal(err)
					}
				}
				if a := attemptOf(t, w, turn.ID); a.State != execution.AttemptOffered || !strings.Contains(a.DeferReason, words) {
					t.Errorf("while Nomad is asked: %s, %q", a.State, a.DeferReason)
				}
				for range 40 {
					if a = attemptOf(t, w, turn.ID); a.State == execution.AttemptQueued {
						break
					}
					w.Sleep(100 * time.Millisecond)
				}
				if a.State != execution.AttemptQueued || !strings.HasSuffix(a.DeferReason, c.says) {
					t.Errorf("%s, %q", a.State, a.DeferReason)
				}
				if n.Down == nil {
					wantWaiting(t, w, turn.ID, c.says)
				}
				n.Down, r.Claims = nil, true
				goesOn(t, w, r, turn)
				wantWaiting(t, w, turn.ID, "nothing: it ended")
			})
		})
	}
}

// A machine declines and claims the offer that it names: what it says of an earlier one of
// the attempt changes nothing. INV-14.
func TestAnswersAreOfTheirOffer(t *testing.T) {
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		r.Claims = false
		first, second := offeredTwice(t, w, n, r)
		decline := func(job string) execution.Attempt {
			t.Helper()
			req := &runnerv1.DeclineRequest{AttemptId: first.ID.String(), Epoch: r.Epoch(), Allocation: job, Reason: "its supervisor ended"}
			if err := w.Engine.Decline(ctx(), r.Caller(), req); err != nil {
				t.Fatal(err)
			}
			return attemptOf(t, w, protocol.TurnID(first.SubjectID))
		}
		claim := func(job string) error {
			_, err := w.Engine.Claim(ctx(), r.Caller(), &runnerv1.ClaimRequest{AttemptId: first.ID.String(), Epoch: r.Epoch(), BootNonce: "nonce", Allocation: job})
			return err
		}
		for _, job := range []string{first.Allocation, "", "bivouac-runner"} {
			if a := decline(job); a.State != execution.AttemptOffered || a.Allocation != second.Allocation {
				t.Errorf("declined for %q: %s, %q", job, a.State, a.Allocation)
			}
			if err := claim(job); protocol.CodeOf(err) != protocol.CodeConflict || !strings.Contains(err.Error(), second.Allocation) {
				t.Errorf("claimed for %q: %v", job, err)
			}
			if a := attemptOf(t, w, protocol.TurnID(first.SubjectID)); a.State != execution.AttemptOffered || a.Fence != second.Fence {
				t.Errorf("after a claim for %q: %s, fence %s", job, a.State, a.Fence)
			}
		}
		if a := decline(second.Allocation); a.State != execution.AttemptQueued || !strings.Contains(a.DeferReason, "its supervisor ended") {
			t.Errorf("declined: %s, %q", a.State, a.DeferReason)
		}
	})
	inHostedWorld(t, func(w *et.World, n *et.Nomad, r *et.Runner) {
		r.Claims = false
		_, second := offeredTwice(t, w, n, r)
		for range 2 { // its answer may be lost
			_, err := w.Engine.Claim(ctx(), r.Caller(), &runnerv1.ClaimRequest{AttemptId: second.ID.String(), Epoch: r.Epoch(), BootNonce: "nonce", Allocation: second.Allocation})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

package engine_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
)

const otherReplica protocol.ReplicaID = "rep_01jdv3k8x0q6v9w2m4t7y5z1ac"

// pass runs every tick of an engine once.
func pass(t *testing.T, e *engine.Engine) {
	t.Helper()
	for _, tick := range e.Ticks() {
		if _, err := tick.Do(ctx()); err != nil {
			t.Fatalf("tick %s: %v", tick.Name, err)
		}
	}
}

// live lets time pass while both engines give their signs.
func live(t *testing.T, w *et.World, other *engine.Engine, d time.Duration) {
	t.Helper()
	for ; d > 0; d -= time.Second {
		time.Sleep(time.Second)
		pass(t, other)
		w.Settle()
	}
}

// A replica that gives signs keeps its turns, however long they take; one that is
// silent for the ttl loses them, under a higher fence. INV-3.
func TestOnlyASilentReplicaIsReplaced(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Text("answer")))
		turn := w.Submit(w.Session("assistant"), "hello")
		w.Until("the model call", func() bool { return w.Turn(turn.ID).State == session.RunningModel && len(w.Ops.Keys()) > 0 })
		before := w.Turn(turn.ID)
		other, _ := w.Beside(otherReplica)
		for range 60 { // four times the ttl
			time.Sleep(time.Second)
			pass(t, other)
			pass(t, w.Engine)
		}
		if now := w.Turn(turn.ID); now.Owner != before.Owner || now.OwnerFence != before.OwnerFence {
			t.Fatalf("a living replica lost its turn to %s under %s", now.Owner, now.OwnerFence)
		}
		took := 0
		for ; w.Turn(turn.ID).Owner == before.Owner && took < 60; took++ {
			time.Sleep(time.Second)
			pass(t, other)
		}
		now := w.Turn(turn.ID)
		if now.Owner != otherReplica || now.OwnerFence <= before.OwnerFence {
			t.Errorf("after %d s it is %s's under %s", took, now.Owner, now.OwnerFence)
		}
		if took < 12 || took > 25 {
			t.Errorf("taken over after %d s, the ttl is 15 s", took)
		}
	})
}

// A runner reconnects to another replica: its old connection is refused there where
// it was, and its lease is the new replica's to judge, from all durations anew. The
// replica it left takes nothing back while the other lives. INV-20.
func TestRunnerMovesToAnotherReplica(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, h := begun(t, w, r)
		other, _ := w.Beside(otherReplica)
		pass(t, other)
		epoch := r.Epoch()
		resp, err := other.Connect(ctx(), r.Caller(), "http/2", &runnerv1.ConnectRequest{
			CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot", Facts: r.Facts, LastEpoch: epoch,
			Held: []*runnerv1.HeldLease{{AttemptId: h.ID.String(), Fence: int64(h.Fence)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Leases) != 1 || !resp.Leases[0].Alive {
			t.Fatalf("the other replica knows nothing of its lease: %v", resp.Leases)
		}
		if _, err := other.Mail(ctx(), r.Caller(), resp.Epoch, 0, 10); err != nil {
			t.Fatal(err)
		}
		renew := func(e *engine.Engine, epoch int64) (bool, error) {
			got, err := e.Renew(ctx(), r.Caller(), &runnerv1.RenewRequest{Epoch: epoch, Leases: []*runnerv1.HeldLease{{AttemptId: h.ID.String(), Fence: int64(h.Fence)}}})
			return len(got.GetLeases()) == 1, err
		}
		for range 20 { // within one renewal of its rows the first replica knows
			time.Sleep(time.Second)
			pass(t, other)
			pass(t, w.Engine)
			if alive, err := renew(other, resp.Epoch); err != nil || !alive {
				t.Fatalf("the new connection: %v, %v", alive, err)
			}
		}
		if _, err := renew(w.Engine, epoch); protocol.CodeOf(err) != protocol.CodeStaleFence {
			t.Errorf("the old connection renews: %v", err)
		}
		for range 120 { // nobody but the new replica judges the lease, and it is renewed
			time.Sleep(time.Second)
			pass(t, other)
			pass(t, w.Engine)
			if alive, err := renew(other, resp.Epoch); err != nil || !alive {
				t.Fatalf("the lease was taken: %v, %v", alive, err)
			}
		}
		if a := attempt(t, w, h.ID); a.State != execution.AttemptRunning {
			t.Errorf("the attempt is %s", a.State)
		}
	})
}

// The replica that a runner left goes on renewing until it has looked at its row, and
// the machine acts on that. The new one calls no lease lapsed before those words are
// as old as the authority that they gave; after that it does. INV-20.
func TestLeaseOfALeftReplicaCounts(t *testing.T) {
	t.Run("its transport stays", func(t *testing.T) { leftReplica(t, false) })
	t.Run("its transport is gone", func(t *testing.T) { leftReplica(t, true) })
}

func leftReplica(t *testing.T, gone bool) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, h := begun(t, w, r)
		other, _ := w.Beside(otherReplica)
		r.Renews = false
		for range 30 { // both have been there for long
			time.Sleep(time.Second)
			pass(t, other)
			pass(t, w.Engine)
			if r.Renew() == nil {
				t.Fatal("the lease is not renewed")
			}
		}
		epoch := r.Epoch()
		if gone {
			if err := w.Engine.Disconnect(ctx(), r.Caller(), epoch); err != nil {
				t.Fatal(err)
			}
		}
		held := []*runnerv1.HeldLease{{AttemptId: h.ID.String(), Fence: int64(h.Fence)}}
		if _, err := other.Connect(ctx(), r.Caller(), "http/2", &runnerv1.ConnectRequest{
			CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot", Facts: r.Facts, LastEpoch: epoch, Held: held,
		}); err != nil {
			t.Fatal(err)
		}
		var last time.Time
		for since := time.Now(); ; {
			got, err := w.Engine.Renew(ctx(), r.Caller(), &runnerv1.RenewRequest{Epoch: epoch, Leases: held})
			if err == nil && len(got.Leases) == 1 {
				last = time.Now()
			} else if protocol.CodeOf(err) != protocol.CodeStaleFence {
				t.Fatal(err)
			} else {
				break
			}
			if time.Since(since) > 10*time.Second {
				t.Fatal("the replica that it left does not learn of it")
			}
			time.Sleep(250 * time.Millisecond)
			pass(t, other)
			pass(t, w.Engine)
		}
		if last.IsZero() {
			t.Fatal("the replica that it left knew at once: nothing is proven")
		}
		for attempt(t, w, h.ID).State == execution.AttemptRunning {
			if time.Since(last) > time.Minute {
				t.Fatal("a lease that nobody renews does not lapse")
			}
			time.Sleep(250 * time.Millisecond)
			pass(t, other)
			pass(t, w.Engine)
		}
		a := attempt(t, w, h.ID)
		if since := time.Since(last); a.State != execution.AttemptSuspect || since < a.AuthorityTTL {
			t.Errorf("the attempt is %s %s after its lease was renewed for %s", a.State, since, a.AuthorityTTL)
		}
	})
}

// One replica leads. Its successor's fence is higher, and what a leader that was
// silent still believes changes nothing. INV-3.
func TestLeadMoves(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		other, _ := w.Beside(otherReplica)
		pass(t, other)
		r.Claims = false
		w.Submit(w.Session("coder"), "hello") // waits for a runner, whom the leader asks
		for range 40 {
			time.Sleep(time.Second)
			pass(t, other) // the first is silent
		}
		lead := w.Lead()
		if lead.Replica != otherReplica {
			t.Fatalf("%s leads", lead.Replica)
		}
		// The silent one wakes up and finds that it is not asked.
		for _, tick := range w.Engine.Ticks() {
			if tick.Name != "place" {
				continue
			}
			if worked, err := tick.Do(ctx()); worked || err != nil {
				t.Errorf("the earlier leader places: %v, %v", worked, err)
			}
		}
		live(t, w, other, 5*time.Second)
		if now := w.Lead(); now.Fence != lead.Fence {
			t.Errorf("the lead went back under %s", now.Fence)
		}
	})
}

// Two servers of one database with artifacts in different places: the one that came
// later ends, and says what to do; with the same place both go on.
func TestReplicasShareTheirArtifacts(t *testing.T) {
	for place, fine := range map[string]bool{"here": true, "there": false} {
		inWorld(t, func(w *et.World, _ *et.Runner) {
			first, _ := w.BesideAt("rep_01jdv3k8x0q6v9w2m4t7y5z1ad", "here")
			pass(t, first)
			time.Sleep(time.Second)
			second, _ := w.BesideAt(otherReplica, place)
			var ended error
			for range 30 {
				time.Sleep(time.Second)
				pass(t, first)
				for _, tick := range second.Ticks() {
					if _, err := tick.Do(ctx()); err != nil && ended == nil {
						ended = err
					}
				}
			}
			if fine != (ended == nil) {
				t.Errorf("artifacts %s: %v", place, ended)
			}
			if !fine && (protocol.CodeOf(ended) != protocol.CodeFailedPrecondition || !strings.Contains(ended.Error(), "--blobs")) {
				t.Errorf("it does not say what to do: %v", ended)
			}
		})
	}
}

// A copy of a data directory is the same server twice: the earlier process ends.
func TestCopyOfAReplicaEndsTheFirst(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		first, _ := w.Beside(otherReplica)
		pass(t, first)
		second, _ := w.Beside(otherReplica)
		pass(t, second)
		time.Sleep(10 * time.Second)
		if err := first.Run(ctx()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "data directory of its own") {
			t.Errorf("the first ended with %v", err)
		}
		pass(t, second)
	})
}

package supervise

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/sandbox"
	"bivouac/edge/supervise/protocol/supervisev1"
)

func (r *rig) hello() *supervisev1.HelloResponse {
	r.t.Helper()
	h, err := r.client.Hello(r.t.Context(), &supervisev1.HelloRequest{})
	must(r.t, err)
	return h
}

func (r *rig) renew(terms *runnerv1.LeaseTerms) {
	r.t.Helper()
	_, err := r.client.Renew(r.t.Context(), &supervisev1.RenewRequest{Terms: terms})
	must(r.t, err)
}

// moves are what the journal says of the sandboxes.
func moves(all []*runnerv1.Record) (out []string) {
	for _, rec := range all {
		if m := rec.GetSandboxMoved(); m != nil {
			out = append(out, m.State)
		}
	}
	return out
}

// toldTruly checks what people are told of a move: of a freeze, that it goes on; only of
// a kill, that something was ended.
func toldTruly(t *testing.T, all []*runnerv1.Record) {
	t.Helper()
	for _, rec := range all {
		m := rec.GetSandboxMoved()
		if m.GetState() == "frozen" && (strings.Contains(m.Reason, "ended") || !strings.Contains(m.Reason, "goes on")) || m.GetState() == "killed" && strings.Contains(m.Reason, "goes on") {
			t.Errorf("%s is told as %q", m.State, m.Reason)
		}
	}
}

// Without renewal every process stops where it is, a daemon in a session of its
// own included, and goes on when the same lease is renewed; when its retention is
// over all are killed. INV-20.
func TestAuthorityLossFreezes(t *testing.T) {
	cfg := real(t, &broker{})
	if seen(cfg).Freezer == "" {
		t.Skip("this machine cannot freeze; TestAuthorityLossKills is about it")
	}
	r := start(t, cfg)
	r.handOver(scripted(script([]string{daemonize("beat")})), "", terms(time.Hour, time.Hour))
	waitFor(t, "the daemonized process", func() bool { return beats(cfg, "beat") != "" })
	for range 2 {
		r.renew(terms(time.Millisecond, time.Hour))
		waitFor(t, "the freeze", func() bool { return r.hello().Frozen })
		dead(t, cfg, "beat")
		frozen := beats(cfg, "beat")
		stale := terms(time.Hour, time.Hour)
		stale.Fence--
		if _, err := r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: stale}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeStaleFence {
			t.Errorf("another fence thaws: %v", err) // INV-3
		}
		r.renew(terms(time.Hour, time.Hour))
		waitFor(t, "the thaw", func() bool { return beats(cfg, "beat") != frozen && !r.hello().Frozen })
		if h := r.hello(); h.Finished {
			t.Errorf("after the renewal: %v", h)
		}
	}
	r.renew(terms(time.Millisecond, time.Hour))
	waitFor(t, "the last freeze", func() bool { return r.hello().Frozen })
	r.renew(terms(0, time.Millisecond)) // no authority, and hardly any time to wait for it
	<-r.done                            // by itself
	must(t, r.err)
	kept, err := openRecords(cfg.journalDir(), "")
	must(t, err)
	defer kept.journal.Close()
	all, err := kept.batch(0)
	must(t, err)
	toldTruly(t, all)
	if got := moves(all); !slices.Equal(got, []string{"frozen", "running", "frozen", "running", "frozen", "killed"}) {
		t.Errorf("the journal tells of %v", got)
	}
	if res := all[len(all)-1].GetResult(); res.GetCode() != protocol.ResultInterrupted {
		t.Errorf("the last record is %v", all[len(all)-1])
	}
	dead(t, cfg, "beat")
}

// still is a group of which it is known whether it is frozen.
type still struct {
	sandbox.Group
	frozen bool
}

func (g *still) Freeze(context.Context) error { g.frozen = true; return nil }
func (g *still) Thaw(context.Context) error   { g.frozen = false; return nil }

// A group that an attempt is given just while it is let go on does not stay frozen: given
// before the thaw has looked for one, or after that. INV-20.
func TestGivenWhileItIsLetGoOn(t *testing.T) {
	heldAttempt := func(t *testing.T, clock func() time.Duration) *attempt {
		kept, err := openRecords(t.TempDir(), "")
		must(t, err)
		t.Cleanup(func() { kept.journal.Close() })
		a := &attempt{supervisor: &supervisor{cfg: Config{Log: slog.New(slog.DiscardHandler)}, lease: lease.NewLease(clock), records: kept},
			relay: relay.New(relay.Config{}), hold: newHold()}
		a.hold.still.Set(true)
		return a
	}
	try := func(t *testing.T, err error) {
		if err != nil {
			t.Error(err)
		}
	}
	runs := func(t *testing.T, a *attempt, g *still) {
		t.Helper()
		if a.held() || g.frozen || a.hold.at != sandbox.StateRunning {
			t.Errorf("held %t, frozen %t, %s", a.held(), g.frozen, a.hold.at)
		}
		if err := a.suspend(t.Context()); err != nil || !g.frozen || !a.held() { // the twin
			t.Errorf("suspended: %v, frozen %t", err, g.frozen)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a, g := heldAttempt(t, func() time.Duration { return 0 }), &still{}
		a.hold.step <- struct{}{} // both come to it one after the other
		go func() { try(t, a.give(t.Context(), g)) }()
		synctest.Wait()
		go func() { try(t, a.resume(t.Context())) }()
		synctest.Wait()
		<-a.hold.step
		synctest.Wait()
		runs(t, a, g)
	})
	synctest.Test(t, func(t *testing.T) {
		var give func()
		a, g := heldAttempt(t, func() time.Duration { give(); return 0 }), &still{}
		give = func() { try(t, a.give(t.Context(), g)) }
		must(t, a.resume(t.Context())) // it reads the clock once it found no group
		give = func() {}
		runs(t, a, g)
	})
}

// The same to the second, and what waits meanwhile: commands, model calls, the
// worker itself.
func TestHoldInVirtualTime(t *testing.T) {
	hold := func(t *testing.T, b *broker) *rig {
		cfg := virtual(t, b)
		seen(cfg).Freezer = "twin"
		return start(t, cfg)
	}
	const ttl, retention = 15 * time.Second, 2 * time.Minute
	bubble(t, "a command goes on", func(t *testing.T) {
		r := hold(t, &broker{})
		began := time.Now()
		r.handOver(scripted(`{"steps":[`+toolStep("shell", map[string]any{"command": "sleep 40s", "timeout_ms": 41_000})+`]}`), "", terms(ttl, retention))
		time.Sleep(ttl - 50*time.Millisecond)
		if r.hello().Frozen {
			t.Error("it was frozen while it had authority")
		}
		time.Sleep(100 * time.Millisecond)
		if !r.hello().Frozen {
			t.Error("it goes on without authority")
		}
		time.Sleep(75*time.Second - 50*time.Millisecond - time.Duration(time.Since(began)-ttl))
		r.renew(terms(time.Hour, time.Hour))
		res, all := r.result()
		got := toolResults(t, all)
		// 15 s before the loss, 25 s after the thaw: neither the command's own time nor
		// its limit ran between.
		took := time.Since(began).Round(time.Second)
		if res.Status != "succeeded" || len(got) != 1 || got[0].Text != "slept\n" || took != 115*time.Second {
			t.Errorf("after %v: results %v of %+v", took, got, res)
		}
		toldTruly(t, all)
		if got := moves(all); !slices.Equal(got, []string{"frozen", "running"}) {
			t.Errorf("the journal tells of %v", got)
		}
		r.acknowledge(all)
	})
	bubble(t, "its time limit counts after the thaw", func(t *testing.T) {
		r := hold(t, &broker{})
		r.handOver(scripted(`{"steps":[`+toolStep("shell", map[string]any{"command": "sleep 1h", "timeout_ms": 20_000})+`]}`), "", terms(ttl, retention))
		time.Sleep(time.Minute)
		thawed := time.Now()
		r.renew(terms(time.Hour, time.Hour))
		res, all := r.result()
		got := toolResults(t, all)
		if len(got) != 1 || got[0].Code != string(protocol.CodeDeadlineExceeded) || time.Since(thawed).Round(time.Second) != 5*time.Second {
			t.Errorf("%v after the thaw: %v of %+v", time.Since(thawed), got, res)
		}
		r.acknowledge(all)
	})
	bubble(t, "a model call is made again", func(t *testing.T) {
		ended := make(chan time.Time, 1)
		b := &broker{}
		b.answer = func(ctx context.Context, req *runtimev1.ModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
			if b.count() == 1 {
				_ = delta("half an ans")
				<-ctx.Done()
				ended <- time.Now()
				return nil, ctx.Err()
			}
			return say("whole"), nil
		}
		r := hold(t, b)
		began := time.Now()
		r.handOver(spec("native"), "", terms(ttl, retention))
		if cut := (<-ended).Sub(began).Round(time.Second); cut != ttl {
			t.Errorf("the open call was cut after %v", cut)
		}
		time.Sleep(time.Minute)
		if b.count() != 1 {
			t.Errorf("%d calls while there was no authority", b.count())
		}
		r.renew(terms(time.Hour, time.Hour))
		res, all := r.result()
		if o := outcomeOf(t, res); o.Text != "whole" || b.count() != 2 {
			t.Errorf("%d calls, outcome %v", b.count(), o)
		}
		r.acknowledge(all)
	})
	bubble(t, "retention ends", func(t *testing.T) {
		r := hold(t, &broker{})
		began := time.Now()
		r.handOver(scripted(script([]string{"sleep 1h"})), "", terms(ttl, retention))
		time.Sleep(retention - time.Second)
		if h := r.hello(); !h.Frozen || h.Finished {
			t.Errorf("before its end: %v", h)
		}
		<-r.done
		must(t, r.err)
		if took := time.Since(began).Round(time.Second); took != retention {
			t.Errorf("it ended after %v", took)
		}
	})
	bubble(t, "stop while frozen", func(t *testing.T) {
		r := hold(t, &broker{})
		r.handOver(scripted(script([]string{"sleep 1h"})), "", terms(ttl, retention))
		time.Sleep(time.Minute)
		_, err := r.client.Stop(t.Context(), &supervisev1.StopRequest{Reason: "the person cancelled the turn"})
		must(t, err)
		res, all := r.result()
		if res.Status != "cancelled" || !slices.Equal(moves(all), []string{"frozen", "killed"}) {
			t.Errorf("result %+v, moves %v", res, moves(all))
		}
		r.acknowledge(all)
	})
	bubble(t, "its own deadline while frozen", func(t *testing.T) {
		r := hold(t, &broker{})
		s := scripted(script([]string{"sleep 1h"}))
		s.Limits.MaxWallMs = time.Minute.Milliseconds()
		began := time.Now()
		r.handOver(s, "", terms(ttl, time.Hour))
		res, all := r.result()
		if res.Code != string(protocol.CodeDeadlineExceeded) || time.Since(began).Round(time.Second) != time.Minute+slack {
			t.Errorf("result %+v after %v", res, time.Since(began))
		}
		r.acknowledge(all)
	})
	bubble(t, "frozen time is no stall", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		seen(cfg).Freezer, cfg.WorkerIdle = "twin", 30*time.Second
		r := start(t, cfg)
		began := time.Now()
		r.handOver(scripted(script(nil, `{"wait_ms":-1}`)), "", terms(ttl, retention))
		time.Sleep(time.Minute)
		r.renew(terms(time.Hour, time.Hour))
		res, all := r.result()
		if res.Code != "worker_stalled" || time.Since(began).Round(time.Second) != 90*time.Second {
			t.Errorf("result %+v after %v", res, time.Since(began))
		}
		r.acknowledge(all)
	})
	bubble(t, "a renewal in time", func(t *testing.T) { // the positive twin of all
		r := hold(t, &broker{})
		r.handOver(scripted(script([]string{"sleep 40s"})), "", terms(ttl, retention))
		for range 8 {
			time.Sleep(5 * time.Second)
			r.renew(terms(ttl, retention))
		}
		synctest.Wait()
		res, all := r.result()
		if res.Status != "succeeded" || len(moves(all)) != 0 || strings.Contains(res.Message, "frozen") {
			t.Errorf("result %+v, moves %v", res, moves(all))
		}
		r.acknowledge(all)
	})
}

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// Run drives everything by itself: loops woken by commits, ops in goroutines. It
// returns when all are gone, with a model call in the middle.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := et.New(t)
		w.Broker.Serve("http:forecast", reply("sunny"))
		script := et.Script(et.Calls(et.Call{ID: "1", Alias: "forecast", Arguments: `{"city":"Oslo"}`}), et.Text("sunny"))
		w.Broker.Say(func(ctx context.Context, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			if req.Messages[len(req.Messages)-1].Blocks[0].GetText() == "hang" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			time.Sleep(3 * time.Second)
			return script(ctx, req)
		})
		e := w.Concurrent()
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() { gone <- e.Run(ctx) }()
		s := w.Session("assistant")
		turn, hung := w.Submit(s, "weather"), w.Submit(s, "hang")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantState(t, w, turn.ID, session.Completed, "")
		if got := w.Turn(turn.ID); got.EndedAt.Sub(got.QueuedAt) > 7*time.Second {
			t.Errorf("two answers of 3 s took %s: the loops wait for the poll", got.EndedAt.Sub(got.QueuedAt))
		}
		wantState(t, w, hung.ID, session.RunningModel, "")
		cancel()
		if err := <-gone; err != nil {
			t.Errorf("run: %v", err)
		}
		wantState(t, w, hung.ID, session.RunningModel, "") // a stop is no failure of the turn

		// The next process takes the turn up at once.
		w.Broker.Say(et.Script(et.Text("here")))
		w.Restart()
		w.Settle()
		wantState(t, w, hung.ID, session.Completed, "")
	})
}

// A replica that is gone loses its turns to another after the replica ttl, and
// what it still has under way changes nothing. INV-3.
func TestTakeover(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Text("late"), et.Text("taken over")))
		turn := w.Submit(w.Session("assistant"), "hello")
		w.Until("the model call", func() bool { return w.Turn(turn.ID).State == session.RunningModel && len(w.Ops.Keys()) > 0 })
		before := w.Turn(turn.ID)
		first, ops := w.Engine, w.Ops
		w.Replace("rep_01jdv3k8x0q6v9w2m4t7y5z1ac")
		r.Connect()
		w.Settle()
		wantState(t, w, turn.ID, session.RunningModel, "")
		w.Sleep(16 * time.Second)
		got := wantState(t, w, turn.ID, session.Completed, "")
		if got.OwnerFence <= before.OwnerFence || got.Answer != "late" {
			t.Errorf("fence %s after %s, answer %q", got.OwnerFence, before.OwnerFence, got.Answer)
		}
		// The first one wakes up: its call is refused, its answer changes nothing.
		for len(ops.Keys()) > 0 {
			ops.Step(ctx(), 0)
		}
		for _, tick := range first.Ticks() {
			if tick.Name == "settle" {
				if _, err := tick.Do(ctx()); err != nil {
					t.Error(err)
				}
			}
		}
		wantState(t, w, turn.ID, session.Completed, "")
		if codes := w.Broker.Refused(); len(codes) != 1 {
			t.Errorf("refused %v: the stale owner's capability should have been", codes)
		}
	})
}

// The leases of a runner whose replica is gone are reaped by the one that takes
// the row over, after all durations ran again.
func TestRowOfAReplicaThatIsGone(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		r.Renews = false
		w.Replace("rep_01jdv3k8x0q6v9w2m4t7y5z1ac")
		over := func() bool { return attempt(t, w, h.ID).State.Terminal() }
		// The replica's silence 15 s, then retention 60 s and the guard of 2 s.
		if took := until(t, w, 3*time.Minute, over); took < 77*time.Second || took > 85*time.Second {
			t.Errorf("reaped after %s", took)
		}
		wantState(t, w, turn.ID, session.Received, "")
	})
}

func TestGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := engine.NewGoroutines()
		never := func(context.Context) { t.Error("it ran") }
		if g.Start("early", never) {
			t.Error("an op started before Run")
		}
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() { gone <- g.Run(ctx) }()
		synctest.Wait()
		var causes []error
		wait := func(ctx context.Context) { <-ctx.Done(); causes = append(causes, context.Cause(ctx)) }
		if !g.Start("a", wait) || g.Start("a", never) {
			t.Error("a key runs once")
		}
		g.Stop("a")
		synctest.Wait()
		if g.Running("a") || len(causes) != 1 || protocol.CodeOf(causes[0]) != protocol.CodeCancelled {
			t.Errorf("stopped: running %v, causes %v", g.Running("a"), causes)
		}
		g.Start("b", wait)
		cancel()
		if err := <-gone; err != nil || len(causes) != 2 || !errors.Is(causes[1], context.Canceled) {
			t.Errorf("run ended with %v, causes %v", err, causes)
		}
		if g.Start("late", never) {
			t.Error("an op started after Run")
		}
	})
}

// BenchmarkTurns is whole turns with an instant model, many sessions at once.
func BenchmarkTurns(b *testing.B) {
	w := et.New(b)
	w.Broker.Say(func(context.Context, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
		return et.Text("hi").Done, nil
	})
	e := w.Concurrent()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() { gone <- e.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-gone; err != nil {
			b.Error(err)
		}
	}()
	var n atomic.Int64
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		s := w.Session("assistant")
		for pb.Next() {
			turn := w.Submit(s, fmt.Sprint(n.Add(1)))
			for !w.Turn(turn.ID).State.Terminal() {
				time.Sleep(time.Millisecond)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
}

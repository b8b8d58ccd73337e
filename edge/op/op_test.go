package op

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneOpOfANameRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Runner
		ctx, cancel := context.WithCancel(t.Context())
		if r.Start("early", func(context.Context) {}) || r.Context().Err() == nil {
			t.Error("before its span a runner takes an op")
		}
		if err := r.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		if r.Begin(ctx) == nil {
			t.Error("a runner ran twice")
		}
		work := make(chan struct{})
		if !r.Start("one", func(context.Context) { <-work }) || !r.Start("other", func(ctx context.Context) { <-ctx.Done() }) {
			t.Error("ops of two names were not started")
		}
		if r.Start("one", func(context.Context) { t.Error("a second op of a name ran") }) || !r.Running("one") {
			t.Error("a second op of a name was taken")
		}
		close(work)
		synctest.Wait()
		if r.Running("one") || !r.Running("other") {
			t.Error("it is not known which op ended")
		}
		if !r.Start("one", func(context.Context) {}) {
			t.Error("an op is not taken again after its end")
		}
		cancel()
		r.Wait()
		if r.Running("other") || r.Start("late", func(context.Context) { t.Error("an op ran after the end") }) {
			t.Error("after the end something runs")
		}
	})
}

func TestStopEndsOneOpWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Runner
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		why := errors.New("no longer wanted")
		causes := map[string]error{}
		r.Start("stopped", func(ctx context.Context) { <-ctx.Done(); causes["stopped"] = context.Cause(ctx) })
		synctest.Wait()
		r.Stop("stopped", why)
		r.Stop("of no op", why)
		synctest.Wait()
		if causes["stopped"] != why || r.Running("stopped") {
			t.Errorf("it ended with %v", causes["stopped"])
		}
		if r.Context().Err() != nil || !r.Start("next", func(ctx context.Context) { <-ctx.Done() }) {
			t.Error("the stop of one op ended the runner")
		}
		cancel()
		r.Wait()
	})
}

// Run returns when the last op has ended, not before.
func TestRunWaitsForItsOps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Runner
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		finished := false
		r.Start("slow", func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Hour)
			finished = true
		})
		cancel()
		if err := <-done; err != nil || !finished {
			t.Errorf("%v; the op had ended: %v", err, finished)
		}
	})
}

func TestBell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waited := func(ctx context.Context, b Bell, d time.Duration) time.Duration {
			begun := time.Now()
			b.Wait(ctx, d)
			return time.Since(begun)
		}
		b := NewBell()
		b.Ring()
		b.Ring() // one wake-up
		if w := waited(t.Context(), b, time.Minute); w != 0 {
			t.Errorf("a bell that was rung is heard after %v", w)
		}
		if w := waited(t.Context(), b, time.Minute); w != time.Minute {
			t.Errorf("a silent bell: back after %v", w)
		}
		time.AfterFunc(time.Second, b.Ring)
		if w := waited(t.Context(), b, 0); w != time.Second {
			t.Errorf("without a limit it was heard after %v", w)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if w := waited(ctx, b, time.Minute); w != 0 {
			t.Errorf("after the end it waits %v", w)
		}
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slept := func(ctx context.Context, d time.Duration) (time.Duration, bool) {
			begun := time.Now()
			alive := Sleep(ctx, d)
			return time.Since(begun), alive
		}
		if d, alive := slept(t.Context(), time.Minute); d != time.Minute || !alive {
			t.Errorf("a whole sleep: %v, alive %v", d, alive)
		}
		if d, alive := slept(t.Context(), 0); d != 0 || !alive {
			t.Errorf("none: %v, alive %v", d, alive)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if d, alive := slept(ctx, time.Minute); d != time.Second || alive {
			t.Errorf("cut short: %v, alive %v", d, alive)
		}
		if d, alive := slept(ctx, 0); d != 0 || alive {
			t.Errorf("after the end: %v, alive %v", d, alive)
		}
	})
}

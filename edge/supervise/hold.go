package supervise

import (
	"context"
	"time"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// hold keeps an attempt as it is while it has no authority, until that comes back
// or its retention is over: sandboxes are frozen, the relay is shut, and what the
// worker had asked for waits. INV-20.
type hold struct {
	still sandbox.Standstill // while held
	step  chan struct{}      // has room while nobody makes a step; guards the fields below
	group sandbox.Group      // nil before the attempt has one
	at    sandbox.State
}

func newHold() *hold { return &hold{step: make(chan struct{}, 1), at: sandbox.StateRunning} }

// freezes reports whether this machine can hold an attempt. Before it was looked at
// nothing runs that would have to be frozen.
func (a *attempt) freezes() bool {
	a.progress.Lock()
	defer a.progress.Unlock()
	return a.report.Boundary == "" || a.report.Freezer != ""
}

func (a *attempt) held() bool {
	held, _ := a.hold.still.Look()
	return held
}

// What people are told of an attempt that is held, and of one that goes on: nothing of
// it has ended.
const (
	whyHeld   = "the lease was not renewed in time; it goes on when the server renews it"
	whyThawed = "the lease was renewed"
)

// suspend holds the attempt. The relay goes first: it is the way out.
func (a *attempt) suspend(ctx context.Context) error {
	a.relay.Suspend()
	a.hold.still.Set(true)
	a.cfg.Log.Warn("the attempt lost its authority and is frozen", "retention_left_ms", a.lease.Retention().Milliseconds())
	return a.move(ctx, sandbox.StateFrozen, whyHeld)
}

// resume lets it go on where it was.
func (a *attempt) resume(ctx context.Context) error {
	if err := a.move(ctx, sandbox.StateRunning, whyThawed); err != nil {
		return err
	}
	a.progress.Lock()
	a.active = a.lease.Now() // nobody asks while frozen
	a.progress.Unlock()
	a.relay.Resume()
	a.hold.still.Set(false)
	// A group that the attempt was given in between was frozen at once.
	if err := a.move(ctx, sandbox.StateRunning, whyThawed); err != nil {
		return err
	}
	a.cfg.Log.Info("the attempt has authority again and goes on")
	return nil
}

// give makes a group the attempt's: frozen at once where the attempt is held. Whether it
// is so is asked within the step: who lets it go on thaws after that.
func (a *attempt) give(ctx context.Context, g sandbox.Group) error {
	a.hold.step <- struct{}{}
	defer func() { <-a.hold.step }()
	a.hold.group, a.hold.at = g, sandbox.StateRunning
	if a.held() {
		return a.walk(ctx, sandbox.StateFrozen, whyHeld)
	}
	return nil
}

// move makes the sandboxes what is wanted.
func (a *attempt) move(ctx context.Context, want sandbox.State, why string) error {
	select {
	case a.hold.step <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-a.hold.step }()
	return a.walk(ctx, want, why)
}

// walk goes there step by step. What the attempt's result does not say by itself is
// journalled between the steps. Sandboxes that have ended need no freezing.
func (a *attempt) walk(ctx context.Context, want sandbox.State, why string) error {
	h := a.hold
	ended := h.at == sandbox.StateKilled || h.at == sandbox.StateClosed
	if h.group == nil || ended && (want == sandbox.StateRunning || want == sandbox.StateFrozen) {
		return nil
	}
	for h.at != want {
		next, err := sandbox.Step(ctx, h.at, want, h.group)
		if err != nil {
			return err
		}
		was := h.at
		h.at = next
		if was != sandbox.StateFrozen && next != sandbox.StateFrozen {
			continue
		}
		moved := &runnerv1.SandboxMoved{State: string(next), Reason: why}
		if _, err := a.records.append(&runnerv1.Record{Kind: &runnerv1.Record_SandboxMoved{SandboxMoved: moved}}, false); err != nil {
			return err
		}
	}
	return nil
}

// lapseEvery is how often a request looks again whether a lease that has just
// lapsed was renewed before the attempt was held.
const lapseEvery = 50 * time.Millisecond

// permit is asked before everything that may have an effect: it waits while the
// attempt has no authority, and ends with the attempt. INV-20.
func (a *attempt) permit(ctx context.Context) error {
	for {
		held, changed := a.hold.still.Look()
		if !held && a.lease.Authority() > 0 {
			return nil
		}
		again := time.NewTimer(lapseEvery)
		if held {
			again.Stop()
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return context.Cause(ctx)
		}
		again.Stop()
	}
}

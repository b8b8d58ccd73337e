package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
)

// perCaller streams share one connection.
const perCaller = 100

// Held are open streams of one kind, and what ended each.
type Held struct {
	rig     *Rig
	prompt  string
	callers []*Caller
	streams *errgroup.Group
	stop    context.CancelFunc

	mu   sync.Mutex // guards below
	all  bool       // are open: from now on an end is an end
	ends map[protocol.Code]int
	last error // that ended one
}

// again is when a stream is asked for once more that was refused for now.
const again = 500 * time.Millisecond

// early notes why a stream did not open, and says whether it is asked for once more: a
// machine that has much else to do lets the broker's feed grow old, and whoever asks for
// real repeats what is unavailable, too.
func (h *Held) early(ctx context.Context, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = err
	return !h.all && ctx.Err() == nil && protocol.CodeOf(err) == protocol.CodeUnavailable
}

// Hold opens n streams and returns when the upstream serves all of them.
func (r *Rig) Hold(ctx context.Context, n int, name string, w Work, caller func() (*Caller, error)) (*Held, error) {
	h := &Held{rig: r, prompt: "hold " + name, streams: &errgroup.Group{}, ends: map[protocol.Code]int{}}
	ctx, h.stop = context.WithCancel(ctx)
	for i := range n {
		if i%perCaller == 0 {
			// One caller's streams are open before the next caller's begin: all at once
			// would be a measure of the crowd at the door.
			if err := h.opened(ctx, i); err != nil {
				return nil, err
			}
			c, err := caller()
			if err != nil {
				return nil, errors.Join(err, h.Close())
			}
			h.callers = append(h.callers, c)
		}
		c := h.callers[len(h.callers)-1]
		h.streams.Go(func() error {
			_, err := c.Call(ctx, w, h.prompt, nil)
			for h.early(ctx, err) {
				time.Sleep(again)
				_, err = c.Call(ctx, w, h.prompt, nil)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ends[protocol.CodeOf(err)]++
			return nil
		})
	}
	if err := h.opened(ctx, n); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all, h.last = true, nil
	return h, nil
}

// opened waits until the upstream serves n streams.
func (h *Held) opened(ctx context.Context, n int) error {
	err := until(ctx, func() bool { return h.Open() == n })
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%d of %d streams opened: %w; one that did not: %v", h.Open(), n, err, h.Lost()), h.Close())
}

// until something holds, for a minute at most.
func until(ctx context.Context, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// Open streams, by the upstream.
func (h *Held) Open() int { return h.rig.Upstream.Open(h.prompt) }

// Drop the connections of the callers.
func (h *Held) Drop() error {
	var errs []error
	for _, c := range h.callers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// After waits for the end of all streams and says how long after an instant each
// ended, by the upstream's clock.
func (h *Held) After(ctx context.Context, since time.Time) ([]time.Duration, error) {
	if err := until(ctx, func() bool { return h.Open() == 0 }); err != nil {
		return nil, fmt.Errorf("%d streams are still open: %w", h.Open(), err)
	}
	var out []time.Duration
	for _, at := range h.rig.Upstream.Ended(h.prompt) {
		out = append(out, at.Sub(since))
	}
	slices.Sort(out)
	return out, nil
}

// Ends waits for the callers' side and counts with what code streams ended.
func (h *Held) Ends() map[protocol.Code]int {
	h.streams.Wait() // they have no error
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends
}

// Lost is what ended one of the streams that were to go on; nil: nothing did, by now.
func (h *Held) Lost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// Close whatever is open.
func (h *Held) Close() error {
	h.stop()
	h.streams.Wait() // they have no error
	return h.Drop()
}

// Cut is one way of taking authority from n open streams while others go on.
type Cut struct {
	Name string
	// After is how long after the cut each stream ended, sorted.
	After []time.Duration
	// LastRequest is how long after the cut the last new request was let through;
	// negative when none was.
	LastRequest time.Duration
	// Ends by code, of the streams that were cut.
	Ends map[protocol.Code]int
	// Others are unrelated streams that were open before and after; Kept those of
	// them that still were.
	Others, Kept int
}

// Cuts measures all ways, n streams each.
func (r *Rig) Cuts(ctx context.Context, n int) (out []Cut, err error) {
	for _, way := range []func(context.Context, int) (Cut, error){r.revoke, r.flip, r.pause} {
		c, err := way(ctx, n)
		if err != nil {
			return out, fmt.Errorf("%s: %w", c.Name, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// Flip measures the one way that paths have: the intention of an agent.
func (r *Rig) Flip(ctx context.Context, n int) (Cut, error) { return r.flip(ctx, n) }

// others are the twins: streams that nothing is taken from.
const others = 20

// measured opens streams of both kinds, cuts, and waits.
func (r *Rig) measured(ctx context.Context, c Cut, n int, w, twin Work, caller func() (*Caller, error), cut func(*Held) (time.Time, error)) (Cut, error) {
	doomed, err := r.Hold(ctx, n, c.Name, w, caller)
	if err != nil {
		return c, err
	}
	defer doomed.Close() // what matters was measured
	kept, err := r.Hold(ctx, others, c.Name+" twin", twin, r.Server)
	if err != nil {
		return c, err
	}
	defer kept.Close()
	asking, cancel := context.WithCancel(ctx)
	asked := r.ask(asking, c.Name, w)
	since, err := cut(doomed)
	if err == nil {
		c.After, err = doomed.After(ctx, since)
	}
	cancel()
	if e := asked(); e != nil || err != nil {
		return c, errors.Join(err, e)
	}
	c.LastRequest = r.Upstream.Last("quick " + c.Name).Sub(since)
	c.Ends, c.Others, c.Kept = doomed.Ends(), others, kept.Open()
	return c, nil
}

// ask for new answers under the same authority all the while.
func (r *Rig) ask(ctx context.Context, name string, w Work) (wait func() error) {
	var g errgroup.Group
	for range 2 {
		g.Go(func() error {
			c, err := r.Server()
			if err != nil {
				return err
			}
			defer c.Close() // its work is over
			for ctx.Err() == nil {
				if _, err := c.Call(ctx, w, "quick "+name, nil); err != nil && ctx.Err() == nil && !refused(err) && protocol.CodeOf(err) != protocol.CodeUnavailable {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait
}

func refused(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.CodePermissionDenied || code == protocol.CodePolicyDenied
}

// revoke the session that all streams run under.
func (r *Rig) revoke(ctx context.Context, n int) (Cut, error) {
	session := newID[protocol.SessionKind]()
	return r.measured(ctx, Cut{Name: "revoke"}, n, Work{Agent: Agent, Session: session}, Work{Agent: Agent}, r.Server, func(*Held) (time.Time, error) {
		return r.Revoke(session.String()), nil
	})
}

// flip the intention of the agent that they work for.
func (r *Rig) flip(ctx context.Context, n int) (Cut, error) {
	c, err := r.measured(ctx, Cut{Name: "flip"}, n, Work{Agent: Agent}, Work{Agent: Other}, r.Server, func(*Held) (time.Time, error) {
		at := time.Now()
		return at, r.Allow(Other)
	})
	if e := errors.Join(err, r.Allow(Agent, Other)); e != nil {
		return c, e
	}
	return c, r.reopened(ctx)
}

// reopened waits until the broker has read that the agent may ask again.
func (r *Rig) reopened(ctx context.Context) error {
	c, err := r.Server()
	if err != nil {
		return err
	}
	defer c.Close() // its work is over
	var last error
	open := until(ctx, func() bool {
		_, last = c.Call(ctx, Work{Agent: Agent}, "quick reopened", nil)
		return !refused(last) && protocol.CodeOf(last) != protocol.CodeUnavailable
	})
	return errors.Join(open, last)
}

// pause the runners that they come from: a paused edge drops its links at once.
func (r *Rig) pause(ctx context.Context, n int) (Cut, error) {
	return r.measured(ctx, Cut{Name: "pause"}, n, Work{Agent: Other}, Work{Agent: Other}, r.Runner, func(h *Held) (time.Time, error) {
		at := time.Now()
		return at, h.Drop()
	})
}

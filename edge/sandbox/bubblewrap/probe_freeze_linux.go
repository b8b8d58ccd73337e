package bubblewrap

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"

	"golang.org/x/sync/errgroup"
)

// beatScript never stops saying something.
const beatScript = `while :; do echo; done`

// beats counts it.
type beats struct{ heard atomic.Int64 }

func (b *beats) Write(p []byte) (int, error) {
	b.heard.Add(int64(len(p)))
	return len(p), nil
}

// Bounds of the look at the freezer: how long a frozen process must be silent, and
// how long a living one may take to say something.
const (
	beatSilence = 40 * time.Millisecond
	beatLook    = 20 * time.Second
)

// seeFrozen names the freezer, if it was seen to stop a process and to let it go
// on. A machine without one is of use: it kills where it would freeze.
func (b *Backend) seeFrozen(ctx context.Context) string {
	tree, err := b.detect()
	if err != nil || tree.Freezer() == "" {
		return ""
	}
	if err := b.tryFreezer(ctx); err != nil {
		if ctx.Err() != nil {
			return "" // nobody waits for the answer, and it would be none
		}
		b.cfg.Log.Warn("sandboxes cannot be frozen here and are killed instead", "mechanism", tree.Freezer(), "error", err)
		return ""
	}
	return tree.Freezer()
}

func (b *Backend) tryFreezer(ctx context.Context) error {
	l := probeLimits
	l.OutputBytes = 1 << 40
	g, err := b.group(ctx, probeID(), l)
	if err != nil {
		return err
	}
	var heard beats
	var beating errgroup.Group
	beating.Go(func() error {
		_, err := g.Run(ctx, sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/bin/sh", "-c", beatScript}, Stdout: &heard})
		return err
	})
	err = heard.stopAndGo(ctx, g)
	return errors.Join(err, g.Close(ctx), beating.Wait())
}

func (b *beats) stopAndGo(ctx context.Context, g *group) error {
	if err := b.more(ctx); err != nil {
		return err
	}
	if err := g.Freeze(ctx); err != nil {
		return err
	}
	if !b.silent(ctx) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "a frozen process goes on")
	}
	if err := g.Thaw(ctx); err != nil {
		return err
	}
	return b.more(ctx)
}

// silent waits until nothing comes any more: what a frozen process said is on its
// way for a while.
func (b *beats) silent(ctx context.Context) bool {
	for end := time.Now().Add(beatLook); time.Now().Before(end) && ctx.Err() == nil; {
		before := b.heard.Load()
		wait(ctx, beatSilence)
		if b.heard.Load() == before {
			return ctx.Err() == nil
		}
	}
	return false
}

// more waits for another beat.
func (b *beats) more(ctx context.Context) error {
	before, end := b.heard.Load(), time.Now().Add(beatLook)
	for b.heard.Load() == before {
		if ctx.Err() != nil || time.Now().After(end) {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "a process that should run says nothing")
		}
		wait(ctx, time.Millisecond)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

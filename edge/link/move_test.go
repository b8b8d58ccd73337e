package link_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/link"
)

// onTCP is a client that UDP kept on TCP; the network is open again.
func onTCP(t *testing.T) (block func(bool), c *link.Client) {
	t.Helper()
	n, cfg := newVirtual(t)
	n.BlockUDP(true)
	c = dial(t, cfg)
	if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/2") {
		t.Fatalf("%q %v", body, err)
	}
	n.BlockUDP(false)
	return n.BlockUDP, c
}

// The new connection is settled before it carries anything else; when that fails
// the old one stays, and nobody noticed.
func TestVirtualMoveIsSettledFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := onTCP(t)
		no := errors.New("not today")
		moved, err := c.Upgrade(t.Context(), func(ctx context.Context) error {
			over, err := getCtx(ctx, c, "/")
			beside, err2 := get(c, "/")
			if err := errors.Join(err, err2); err != nil || !strings.HasPrefix(over, "HTTP/3") || !strings.HasPrefix(beside, "HTTP/2") {
				t.Errorf("settling goes over %q, the rest over %q, %v", over, beside, err)
			}
			return no
		})
		if moved || !errors.Is(err, no) || c.Transport() != link.HTTP2 || !strings.Contains(c.QUICProblem(), "not today") {
			t.Errorf("moved %v to %s, %v, %q", moved, c.Transport(), err, c.QUICProblem())
		}
		var settled context.Context
		moved, err = c.Upgrade(t.Context(), func(ctx context.Context) error { settled = ctx; return nil })
		if !moved || err != nil || c.Transport() != link.HTTP3 || c.QUICProblem() != "" {
			t.Errorf("moved %v to %s, %v, %q", moved, c.Transport(), err, c.QUICProblem())
		}
		c.Drop() // what was bound to the connection ends with it
		if _, err := getCtx(settled, c, "/"); err == nil {
			t.Error("a request went over a connection that is gone")
		}
	})
}

// A network that flaps is trusted less each time, until QUIC has held for a while.
func TestVirtualFlappingIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block, c := onTCP(t)
		flap := func() time.Duration {
			t.Helper()
			if moved, err := c.Upgrade(t.Context(), nil); !moved {
				t.Fatal(err)
			}
			block(true)
			time.Sleep(4 * time.Second)
			if _, err := get(c, "/"); err != nil || c.Transport() != link.HTTP2 {
				t.Fatalf("over %s: %v", c.Transport(), err)
			}
			block(false)
			wait, _ := c.NextProbe()
			return wait
		}
		for _, bound := range []time.Duration{20, 40, 80} {
			if wait := flap(); wait < bound*time.Second*3/4 || wait > bound*time.Second*5/4 {
				t.Errorf("the next probe comes in %v, want about %v", wait, bound*time.Second)
			}
		}
		if moved, err := c.Upgrade(t.Context(), nil); !moved {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		block(true)
		time.Sleep(4 * time.Second)
		if _, err := get(c, "/"); err != nil {
			t.Fatal(err)
		}
		if wait, _ := c.NextProbe(); wait > 13*time.Second {
			t.Errorf("after a while of QUIC the next probe comes in %v", wait)
		}
	})
}

// QUIC that connects and lets nothing through is left alone until a probe settles.
func TestVirtualStalledQUICIsShunned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cfg := newVirtual(t)
		c := dial(t, cfg)
		if _, err := get(c, "/"); err != nil || c.Transport() != link.HTTP3 {
			t.Fatal(err)
		}
		c.Stalled("nothing came back")
		if _, err := get(c, "/"); err != nil || c.Transport() != link.HTTP2 || !strings.Contains(c.QUICProblem(), "nothing came back") {
			t.Fatalf("over %s, %q: %v", c.Transport(), c.QUICProblem(), err)
		}
		c.Drop()
		if _, err := get(c, "/"); err != nil || c.Transport() != link.HTTP2 {
			t.Fatalf("a reconnect went over %s: %v", c.Transport(), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return c.Run(ctx) })
		time.Sleep(2 * time.Minute)
		if c.Transport() != link.HTTP3 || c.QUICProblem() != "" {
			t.Errorf("after the probe the link goes over %s, %q", c.Transport(), c.QUICProblem())
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// A dial over a path that is known to be stale is begun anew: the machine woke up.
func TestVirtualDropBeginsTheDialAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, cfg := newVirtual(t)
		n.Cut(true)
		c := dial(t, cfg)
		start := time.Now()
		var g errgroup.Group
		for range 3 { // all who wait for the dial
			g.Go(func() error { _, err := get(c, "/"); return err })
		}
		time.Sleep(time.Second)
		n.Cut(false)
		c.Drop()
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("the dial went on over the stale path for %v", took)
		}
	})
}

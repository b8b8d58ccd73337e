//go:build linux

package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

// shortLife of leaves: far below the hour that Consul takes from an operator. Consul dates
// the begin of a leaf a minute back, and gives another from three fifths of its life on.
const shortLife = 120 * time.Second

// Leaves that end soon are replaced one after the other while requests run, and none of
// those is lost. Once Consul is away the last leaf counts to its end, and no longer: what
// is open is refused then, what is new, too, and both texts say since when. Once Consul is
// back all goes on by itself.
func TestRealLeafEnds(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Start(t, p)
		configure(t, at, func(c map[string]any) { c["LeafCertTTL"], c["SkipValidate"] = shortLife.String(), true })
		server, broker := names(at)
		here, there := of(t, at, at.Address(), server, broker, writes(t, at, server)), of(t, at, at.Address(), broker, server, writes(t, at, broker))
		within(t, "identities", func() error { return errors.Join(here.Ready(), there.Ready()) })
		l := listen(t, there)
		c := l.dial(t, here)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var g errgroup.Group
		g.Go(func() error { return c.RunVouch(ctx) })
		seen := map[string]bool{}
		within(t, "another leaf", func() error {
			if err := ask(t.Context(), c); err != nil {
				t.Fatalf("a request was lost after %d leaves: %v", len(seen), err)
			}
			if seen[here.Leaf()] = true; len(seen) < 2 {
				return fmt.Errorf("%d until now", len(seen))
			}
			return nil
		})
		at.Kill(t)
		within(t, "the end of the leaf", func() error {
			if err := ask(t.Context(), c); err == nil || !strings.Contains(err.Error(), "ended at") {
				return fmt.Errorf("over the open connection: %v", err)
			}
			return nil
		})
		within(t, "the end of the own leaf", func() error {
			if err := ask(t.Context(), l.dial(t, here)); err == nil || !strings.Contains(err.Error(), "ended at") {
				return fmt.Errorf("over a new connection: %v", err)
			}
			return nil
		})
		at.Start(t)
		within(t, "the way back", func() error { return ask(t.Context(), c) })
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

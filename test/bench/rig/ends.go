package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ends is what became of grants that an admin revoked in the server, while streams
// were open under them and requests came without a pause.
type Ends struct {
	// Streams is how long after the server's answer each stream ended.
	Streams []time.Duration
	// LastRequest is, for each grant, how long after the answer the last request under
	// it was let through; at most zero where none was.
	LastRequest []time.Duration
	// Tried counts grants of which the credential of an action was asked for at once after
	// the answer; Minted those of them that had one.
	Tried, Minted int
	// Others are streams under grants that were not revoked; Kept those of them that
	// were open at the end. Lost is what ended one that was not.
	Others, Kept int
	Lost         error
}

// held grant with its streams.
type heldGrant struct {
	Grant
	streams *Held
}

func (h heldGrant) work() Work     { return Work{Agent: Agent, Grant: h.ID} }
func (h heldGrant) prompt() string { return "quick " + h.ID.String() }

// Revocations opens streams under grants, evenly, and has some of the grants revoked
// in rounds, at moments that lie anywhere between two looks of the broker; and then as
// many as one round has, to see what is still minted. There must be more grants.
type Revocations struct {
	Grants, Streams int
	Rounds, InRound int // of grants that are revoked
	// Within a round, the revocations are spread over this time.
	Over time.Duration
}

// Ends measures revocations on a rig whose grants a site holds.
func (r *Rig) Ends(ctx context.Context, x *Site, how Revocations) (out Ends, err error) {
	grants, err := x.Many(ctx, r.held, how.Grants, 1)
	if err != nil {
		return out, err
	}
	var all []heldGrant
	defer func() {
		for _, h := range all {
			err = errors.Join(err, h.streams.Close())
		}
	}()
	for _, g := range grants {
		h := heldGrant{Grant: g}
		if h.streams, err = r.Hold(ctx, how.Streams/how.Grants, "slow "+g.ID.String(), h.work(), r.Server); err != nil {
			return out, err
		}
		all = append(all, h)
	}
	rest := all
	for range how.Rounds {
		var doomed []heldGrant
		doomed, rest = rest[:how.InRound], rest[how.InRound:]
		if err := r.round(ctx, x, doomed, how.Over, &out); err != nil {
			return out, err
		}
	}
	// Apart from those: a mint that is refused tells the broker of the end.
	for _, h := range rest[:how.InRound] {
		if _, err := x.Revoke(ctx, h.Grant); err != nil {
			return out, err
		}
		out.Tried++
		if _, err := r.held.Mint(ctx, h.Use()); err == nil {
			out.Minted++
		}
	}
	for _, h := range rest[how.InRound:] {
		out.Others += how.Streams / how.Grants
		out.Kept += h.streams.Open()
		out.Lost = cmp.Or(out.Lost, h.streams.Lost())
	}
	return out, nil
}

// round revokes some grants while requests come under each of them.
func (r *Rig) round(ctx context.Context, x *Site, doomed []heldGrant, over time.Duration, out *Ends) error {
	asking, stop := context.WithCancel(ctx)
	var asks errgroup.Group
	for _, h := range doomed {
		asks.Go(func() error { return r.pester(asking, h) })
	}
	revoked, err := r.scattered(ctx, x, doomed, over)
	for i, h := range doomed {
		if err != nil {
			break
		}
		var after []time.Duration
		after, err = h.streams.After(ctx, revoked[i])
		out.Streams = append(out.Streams, after...)
	}
	stop()
	if err := errors.Join(err, asks.Wait()); err != nil {
		return err
	}
	for i, h := range doomed {
		out.LastRequest = append(out.LastRequest, r.Upstream.Last(h.prompt()).Sub(revoked[i]))
	}
	return nil
}

// scattered revokes grants at moments of a span, once each has had an answer, and says
// when the server had answered.
func (r *Rig) scattered(ctx context.Context, x *Site, doomed []heldGrant, over time.Duration) ([]time.Time, error) {
	err := until(ctx, func() bool {
		return !slices.ContainsFunc(doomed, func(h heldGrant) bool { return r.Upstream.Last(h.prompt()).IsZero() })
	})
	if err != nil {
		return nil, fmt.Errorf("requests under the grants: %w", err)
	}
	at := make([]time.Time, len(doomed))
	var all errgroup.Group
	for i, h := range doomed {
		all.Go(func() (err error) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(rand.N(over)):
			}
			at[i], err = x.Revoke(ctx, h.Grant)
			return err
		})
	}
	return at, all.Wait()
}

// between requests of one grant.
const between = 25 * time.Millisecond

// pester asks for new answers under a grant all the while, also when it is refused.
func (r *Rig) pester(ctx context.Context, h heldGrant) error {
	c, err := r.Server()
	if err != nil {
		return err
	}
	defer c.Close() // its work is over
	for ctx.Err() == nil {
		if _, err := c.Call(ctx, h.work(), h.prompt(), nil); err != nil && ctx.Err() == nil && !refused(err) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(between):
		}
	}
	return nil
}

//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/keyring"
	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/bench/rig"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
	"bivouac/vaultpolicy"
)

// vaultShape is how much is measured.
type vaultShape struct{ streams, actions int }

const (
	vaultGrants  = 100  // in use, with open streams under them
	vaultRestart = 1000 // that a broker starts with
	vaultMints   = 200
	atOnce       = 8 // requests of one measurement
)

// vaultFigures are what grants cost that a Vault or OpenBao holds, and how fast an
// admin's revocation there ends what stands on one. An engine that is not on this
// machine is passed over, loudly.
func vaultFigures(ctx context.Context, shape vaultShape) error {
	for _, e := range engine.Vaults() {
		p, err := e.Find(ctx)
		if errors.Is(err, engine.ErrAbsent) {
			fmt.Printf("bench SKIPPED LOUDLY: the figures of %s: %v\n", e.Name, err)
			continue
		}
		if err == nil {
			err = engineFigures(ctx, p, shape)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return nil
}

func engineFigures(ctx context.Context, p engine.Program, shape vaultShape) (err error) {
	dir, err := os.MkdirTemp("", "bivouac-bench-"+p.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := vaulttest.StartIn(p, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	at := rig.Server{Address: s.Address(), CAFile: s.CAFile(), RootToken: s.RootToken(), AuditFile: s.AuditFile()}
	f := &vaultFigure{engine: p.Name, dir: dir, server: at}
	users, err := pgcluster.New(ctx)
	switch {
	case errors.Is(err, pgcluster.ErrAbsent):
		fmt.Printf("bench SKIPPED LOUDLY: what engines issue: %v\n", err)
	case err != nil:
		return err
	default:
		defer func() { err = errors.Join(err, users.Remove()) }()
		f.server.Database = users.DSN()
	}
	if err := f.adapter(ctx, shape.actions); err != nil {
		return err
	}
	// With an audit source an end is seen at once; by polling alone, in the time of
	// some polls.
	if err := f.ends(ctx, "audit", at, shape.streams, time.Second, 1000); err != nil {
		return err
	}
	at.AuditFile = ""
	return f.ends(ctx, "polling", at, shape.streams, 3*time.Second, 6000)
}

// vaultFigure measures one engine.
type vaultFigure struct {
	engine, dir string
	server      rig.Server
}

func (f *vaultFigure) report(name string, value float64, unit string, target float64) {
	report(f.engine+"_"+name, value, unit, target, false)
}

// ends measures revocations under load.
func (f *vaultFigure) ends(ctx context.Context, name string, at rig.Server, streams int, over time.Duration, target float64) (err error) {
	dir, err := os.MkdirTemp(f.dir, name+"-")
	if err != nil {
		return err
	}
	var site *rig.Site
	r, err := rig.StartOn(ctx, dir, rig.On(at, func(x *rig.Site) { site = x }))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	defer site.Close()
	out, err := r.Ends(ctx, site, rig.Revocations{Grants: vaultGrants, Streams: streams, Rounds: 3, InRound: 10, Over: over})
	if err != nil {
		return fmt.Errorf("revocations, %s: %w", name, err)
	}
	for i, d := range out.LastRequest {
		out.LastRequest[i] = max(d, 0)
	}
	f.report("revoke_"+name+"_last_request_p99", quantile(out.LastRequest, 0.99), "ms", target)
	f.report("revoke_"+name+"_streams_p99", quantile(out.Streams, 0.99), "ms", target)
	f.report("revoke_"+name+"_minted_at_once", float64(out.Minted), "credentials", 0)
	if out.Lost != nil {
		fmt.Printf("bench %s, %s: a stream under a grant that nobody revoked ended: %v\n", f.engine, name, out.Lost)
	}
	report(f.engine+"_revoke_"+name+"_others_kept", float64(out.Kept), "streams", float64(out.Others), true)
	return nil
}

// adapter measures what needs no requests: minting, what actions leave behind, and a
// start with many grants.
func (f *vaultFigure) adapter(ctx context.Context, actions int) (err error) {
	data := filepath.Join(f.dir, "keys")
	if _, err := keyring.Init(data); err != nil {
		return err
	}
	keys, err := keyring.Open(data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keys.Close()) }()
	x, err := rig.NewSite(ctx, f.dir, f.server, protocol.NewID[protocol.TenantKind](time.Now(), rand.Reader))
	if err != nil {
		return err
	}
	defer x.Close()
	var grants []rig.Grant
	if err := running(ctx, x, keys, func(ctx context.Context, v *vaultpolicy.Vault) (err error) {
		if grants, err = x.Many(ctx, v, vaultRestart, atOnce); err != nil {
			return err
		}
		if err := f.mints(ctx, v, grants[0]); err != nil {
			return err
		}
		return f.growth(ctx, x, v, grants, actions)
	}); err != nil {
		return err
	}
	return running(ctx, x, keys, func(ctx context.Context, v *vaultpolicy.Vault) error { return f.restart(ctx, v, grants) })
}

// running runs an adapter as a broker does, for as long as something is done with it.
func running(ctx context.Context, x *rig.Site, keys *keyring.Keyring, do func(context.Context, *vaultpolicy.Vault) error) error {
	v, err := x.Adapter(keys)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return v.Run(ctx, func(authority.Ended) {}) })
	g.Go(func() error {
		defer cancel()
		return do(ctx, v)
	})
	return g.Wait()
}

// mints measures the credential of one action.
func (f *vaultFigure) mints(ctx context.Context, v *vaultpolicy.Vault, g rig.Grant) error {
	var took []time.Duration
	for i := range vaultMints + vaultMints/10 {
		began := time.Now()
		if _, err := v.Mint(ctx, g.Use()); err != nil {
			return err
		}
		if i >= vaultMints/10 { // connections are made, code is warm
			took = append(took, time.Since(began))
		}
	}
	f.report("mint_p50", quantile(took, 0.5), "ms", 10)
	return nil
}

// growth counts in the server what actions leave behind.
func (f *vaultFigure) growth(ctx context.Context, x *rig.Site, v *vaultpolicy.Vault, grants []rig.Grant, actions int) error {
	tokens, persons, err := x.Count(ctx)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range actions {
		all.Go(func() error {
			_, err := v.Mint(ctx, grants[i%len(grants)].Use())
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	issued, err := f.issued(ctx, x, v, grants, actions/10)
	if err != nil {
		return err
	}
	moreTokens, morePersons, err := x.Count(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("growth_after_%d_actions_%d_of_them_issued", actions+issued, issued)
	f.report(name, float64(moreTokens-tokens), "tokens_and_leases", 0)
	f.report(name, float64(morePersons-persons), "entities", 0)
	return nil
}

// issued lets engines issue for actions: half of them users of a database, which are
// leases until the action is over. It returns how many there were.
func (f *vaultFigure) issued(ctx context.Context, x *rig.Site, v *vaultpolicy.Vault, grants []rig.Grant, actions int) (int, error) {
	if f.server.Database == "" {
		return 0, nil
	}
	if err := f.counts(ctx, x, v, grants[0]); err != nil {
		return 0, err
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range actions {
		all.Go(func() error {
			c, err := x.Issue(ctx, v, grants[i%len(grants)], i)
			if err == nil {
				c.Return(ctx)
			}
			return err
		})
	}
	return actions, all.Wait()
}

// counts: a lease that is not given back is counted, or none would ever be.
func (f *vaultFigure) counts(ctx context.Context, x *rig.Site, v *vaultpolicy.Vault, g rig.Grant) error {
	before, _, err := x.Count(ctx)
	if err != nil {
		return err
	}
	c, err := x.Issue(ctx, v, g, 0)
	if err != nil {
		return err
	}
	defer c.Return(ctx)
	if during, _, err := x.Count(ctx); err != nil || during <= before {
		return errors.Join(err, fmt.Errorf("%d tokens and leases before a user was issued, and %d while there is one: the count shows nothing", before, during))
	}
	return nil
}

// restart measures a broker that has just begun, until every grant is answered for.
func (f *vaultFigure) restart(ctx context.Context, v *vaultpolicy.Vault, grants []rig.Grant) error {
	began := time.Now()
	for _, g := range grants {
		for v.Alive(ctx, g.ID) != nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	f.report(fmt.Sprintf("restart_with_%d_grants", len(grants)), float64(time.Since(began))/float64(time.Millisecond), "ms", 2000)
	return nil
}

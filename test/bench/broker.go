//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"bivouac/test/bench/rig"
)

// brokerFigures are what the broker adds to a request, and how fast authority ends,
// by the upstream's own clock.
func brokerFigures(ctx context.Context, streams, calls int) (err error) {
	dir, err := os.MkdirTemp("", "bivouac-bench-broker-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, err := rig.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	o, err := r.Overhead(ctx, calls)
	if err != nil {
		return err
	}
	report("broker_direct_p50", quantile(o.Direct, 0.5), "ms", 1, false)
	report("broker_added_p50", quantile(o.Through, 0.5)-quantile(o.Direct, 0.5), "ms", 1, false)
	report("broker_first_byte_added_p50", quantile(o.FirstThrough, 0.5)-quantile(o.FirstDirect, 0.5), "ms", 1, false)
	cuts, err := r.Cuts(ctx, streams)
	if err != nil {
		return err
	}
	for _, c := range cuts {
		report("streams_"+c.Name+"_p99", quantile(c.After, 0.99), "ms", 1000, false)
		if c.Name != "pause" { // a paused runner asks nothing any more
			report("streams_"+c.Name+"_last_request", quantile([]time.Duration{max(c.LastRequest, 0)}, 1), "ms", 1000, false)
		}
		report("streams_"+c.Name+"_others_kept", float64(c.Kept), "streams", float64(c.Others), true)
	}
	return nil
}

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/bench/failover"
)

// failoverFigures are what people notice when one of two servers is killed, all the
// same whether they held an answer at that moment or waited for one.
func failoverFigures(ctx context.Context, bin string) (err error) {
	db, err := pgcluster.New(ctx, "max_connections=100", "fsync=on")
	if errors.Is(err, pgcluster.ErrAbsent) {
		fmt.Println("bench SKIPPED LOUDLY: the figures of a failover:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Remove()) }()
	dir, err := os.MkdirTemp("", "bivouac-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out, err := failover.Measure(ctx, failover.Config{Bin: bin, Dir: dir, Database: db.DSN(), People: 8, Kills: 12})
	if err != nil {
		return err
	}
	report("failover_gap_p50", quantile(out.Gaps, 0.5), "ms", 2000, false)
	report("failover_gap_p99", quantile(out.Gaps, 0.99), "ms", 2000, false)
	report("failover_admissions", float64(out.Acknowledged), "turns", 0, true)
	report("failover_admissions_lost", float64(out.Lost), "turns", 0, false)
	report("failover_admissions_twice", float64(out.Twice), "turns", 0, false)
	return nil
}

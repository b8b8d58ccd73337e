package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// simFigures times the simulation as a test binary plays it: what a seed is stands
// in its package, and it runs inside tests alone.
func simFigures(ctx context.Context, seeds int) error {
	dir, err := os.MkdirTemp("", "bivouac-bench-sim-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./test/sim").CombinedOutput(); err != nil {
		return fmt.Errorf("build of the simulation: %w\n%s", err, out)
	}
	run := exec.CommandContext(ctx, binary, "-test.run", "^TestSeeds$", "-seeds", strconv.Itoa(seeds))
	run.Dir = dir
	begun := time.Now()
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("the simulation: %w\n%s", err, out)
	}
	report("sim", float64(seeds)/time.Since(begun).Minutes(), "seeds/min", 100, true)
	return nil
}

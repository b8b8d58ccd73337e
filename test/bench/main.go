//go:build linux

// Command bench starts the product as separate processes and prints one line a
// figure: bench name=… value=… unit=… target=… ok=true|false. Nothing fails by
// being slow: figures are read, not judged, and a busy machine says more about
// itself than about the product.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the binaries")
	turns := flag.Int("turns", 60, "turns for each latency")
	streams := flag.Int("streams", 1000, "open streams from which authority is taken")
	actions := flag.Int("actions", 1000, "actions after which what they leave in a Vault or OpenBao is counted")
	only := flag.String("only", "", `"store", "system", "failover", "sandbox", "broker", "vault", "consul", "tunnel", "ledger" or "sim"; all when empty`)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	code := 0
	var err error
	wanted := func(part string) bool { return err == nil && (*only == "" || *only == part) }
	if wanted("store") {
		err = admissions(ctx)
	}
	if wanted("system") {
		err = run(ctx, *bin, *turns)
	}
	if wanted("failover") {
		err = failoverFigures(ctx, *bin)
	}
	if wanted("sandbox") {
		err = sandboxFigures(ctx, 5*(*turns))
	}
	if wanted("broker") {
		err = brokerFigures(ctx, *streams, 5*(*turns))
	}
	if wanted("vault") {
		err = vaultFigures(ctx, vaultShape{*streams, *actions})
	}
	if wanted("consul") {
		err = consulFigures(ctx, *streams)
	}
	if wanted("tunnel") {
		err = tunnelFigures(ctx, 5)
	}
	if wanted("ledger") {
		err = ledgerFigures()
	}
	if wanted("sim") {
		err = simFigures(ctx, 60)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench failed:", err)
		code = 1
	}
	cancel()
	stop()
	os.Exit(code)
}

func run(ctx context.Context, bin string, turns int) error {
	s, err := start(ctx, bin)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, measure := range []func(context.Context, int) error{s.memory, s.deviceTurns, s.codingTurns, s.throughput, s.workerMemory, s.restart} {
		if err := measure(ctx, turns); err != nil {
			return err
		}
	}
	return nil
}

// report prints one figure against its target; lower is better unless more is.
func report(name string, value float64, unit string, target float64, more bool) {
	ok := value <= target
	if more {
		ok = value >= target
	}
	fmt.Printf("bench name=%s value=%.4g unit=%s target=%g ok=%t\n", name, value, unit, target, ok)
}

// quantile of durations, in milliseconds.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / float64(time.Millisecond)
}

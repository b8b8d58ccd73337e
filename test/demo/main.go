//go:build linux

// Command demo does the two main jobs of the product on the embedded default, as
// separate processes, through the command line a person uses, and prints what
// happened and where. It ends with one line that CI reads.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"bivouac/test/exectrace"
)

func main() {
	exectrace.Main()
	bin := flag.String("bin", "bin", "directory of the binaries")
	dir := flag.String("dir", ".demo", "directory for everything the demo makes; emptied first")
	all := flag.Bool("events", false, "print every event of both turns too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	code := 0
	if err := run(ctx, *bin, *dir, *all); err != nil {
		fmt.Fprintf(os.Stderr, "demo failed: %v\nthe logs are in %s/state/logs\n", err, *dir)
		code = 1
	}
	cancel()
	stop()
	os.Exit(code)
}

func run(ctx context.Context, bin, dir string, all bool) (err error) {
	d, err := prepare(bin, dir)
	if err != nil {
		return err
	}
	d.all = all
	defer func() {
		if cerr := d.close(); err == nil {
			err = cerr
		}
	}()
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.personal(ctx); err != nil {
		return fmt.Errorf("the personal turn: %w", err)
	}
	if err := d.coding(ctx); err != nil {
		return fmt.Errorf("the coding turn: %w", err)
	}
	if err := d.count(ctx); err != nil {
		return err
	}
	if err := d.stop(); err != nil {
		return err
	}
	hits, err := d.secretHits(ctx)
	if err != nil {
		return err
	}
	for _, h := range hits {
		fmt.Println("  found", h)
	}
	fmt.Printf("demo ok: turns=%d completed=%d approvals=%d secrets=%d\n", d.turns, d.completed, d.approvals, len(hits))
	if len(hits) > 0 || d.turns != d.completed {
		return fmt.Errorf("%d of %d turns completed, %d secrets found", d.completed, d.turns, len(hits))
	}
	return nil
}

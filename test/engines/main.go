//go:build linux

// Command engines runs what adapts a foreign server against that server: the suite
// of the Authority port on the embedded keyring, which needs none, and every package
// whose tests use an engine's fixture on each engine. It finds or builds the engines
// first. With names of engines it runs those alone, and fails where one cannot be had;
// without, one that is not here and is not built is passed over, loudly.
//
// It prints one line an engine, one line a package and engine, and the figures that
// the tests log. Nothing fails by being slow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"bivouac/test/engines/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, engine.Names(strings.Join(os.Args[1:], " ")))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	wanted := engine.All()
	if len(names) > 0 {
		var err error
		if wanted, err = engine.Named(names); err != nil {
			return err
		}
	}
	var here []string
	for _, e := range wanted {
		said, err := bring(ctx, e)
		switch {
		case err == nil:
			fmt.Printf("engine %s: %s\n", e.Name, said)
			here = append(here, e.Name)
		case len(names) == 0 && e.Package == "" && errors.Is(err, engine.ErrAbsent):
			fmt.Printf("engine %s: SKIPPED LOUDLY: %v\n", e.Name, err)
		default:
			return err
		}
	}
	suites, err := suites(ctx)
	if err != nil {
		return err
	}
	var failed []string
	for _, s := range suites {
		ok, err := s.run(ctx, here)
		if err != nil {
			return err
		}
		if !ok {
			failed = append(failed, s.name())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// bring finds or builds an engine, and says what it is.
func bring(ctx context.Context, e engine.Engine) (string, error) {
	p, err := e.Find(ctx)
	how := "found"
	if errors.Is(err, engine.ErrAbsent) && e.Package != "" {
		var took time.Duration
		p, took, err = e.Build(ctx, os.Stderr)
		how = "built in " + took.Round(time.Second).String()
	}
	if err != nil {
		return "", err
	}
	version, err := p.Version(ctx)
	return fmt.Sprintf("%s, %s at %s", version, how, p.Path), err
}

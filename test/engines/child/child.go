//go:build linux

// Package child is a real server as a child process of a test: it is waited for until it
// is as far, stopped as its operator does, killed as a power failure would, and its last
// words are said where it fails. One server for each program may be shared by the tests of
// a binary.
//
// It guarantees that a server which tests share is not stopped by one of them, and that
// what is shared ends with the tests. It knows nothing of what servers do.
package child

import (
	"context"
	"fmt"
	"testing"
	"time"

	"bivouac/test/process"
)

// StartIn bounds a start, also on a machine that has much else to do.
const StartIn = 2 * time.Minute

// again is how often a server is asked whether it is as far.
const again = 20 * time.Millisecond

// Child is the process of a server.
type Child struct {
	*process.Process
	shared bool
}

// Share it: from now on no test may do it harm.
func (c *Child) Share() { c.shared = true }

// Await asks until is, or the program is gone, or ctx ends.
func (c *Child) Await(ctx context.Context, what string, is func(context.Context) bool) error {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for !is(ctx) {
		select {
		case <-tick.C:
		case <-c.Gone():
			return fmt.Errorf("%s ended before %s\n%s", c.Name(), what, c.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s: no %s: %w\n%s", c.Name(), what, context.Cause(ctx), c.Tail())
		}
	}
	return nil
}

// Own refuses a fault on a server that other tests use.
func (c *Child) Own(t testing.TB, fault string) context.Context {
	t.Helper()
	if c.shared {
		t.Fatalf("%s: other tests use this server; take one from Start", fault)
	}
	ctx, cancel := context.WithTimeout(context.Background(), StartIn)
	t.Cleanup(cancel)
	return ctx
}

// Stop asks the server to end and waits until it is gone.
func (c *Child) Stop(t testing.TB) {
	t.Helper()
	c.Own(t, "stop")
	if err := c.Process.End(); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the server as a power failure would.
func (c *Child) Kill(t testing.TB) {
	t.Helper()
	c.Own(t, "kill")
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Log is the end of what the server said.
func (c *Child) Log() string { return c.Tail() }

// Close ends the server. Its folder stays.
func (c *Child) Close() error { return c.Process.End() }

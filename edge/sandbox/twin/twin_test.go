package twin

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/sandboxtest"
)

// attacker has the services of the suite's program as a function.
func attacker(ctx context.Context, c Call) int {
	switch c.Argv[1] {
	case "exit":
		n, err := strconv.Atoi(c.Argv[2])
		if err != nil {
			return 2
		}
		return n
	case "cat":
		fmt.Fprint(c.Stderr, strings.Join(c.Argv[2:], " "))
		if _, err := io.Copy(c.Stdout, c.Stdin); err != nil {
			return 1
		}
	case "spew":
		for block := make([]byte, 4096); ; {
			if _, err := c.Stdout.Write(block); err != nil {
				return 1
			}
		}
	case "beat":
		for c.Sleep(ctx, time.Millisecond) {
			fmt.Fprintln(c.Stdout, "beat")
		}
	case "sleep":
		fmt.Fprintln(c.Stdout, "up")
		<-ctx.Done()
	}
	return 0
}

func TestSuite(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(*testing.T) sandbox.Backend {
			return New(Config{Programs: map[string]Program{"/attacker": attacker}})
		},
		Program: "/attacker",
	})
}

// TestVirtualTime proves that a worker's whole life passes in virtual time: its
// channel, its time limit, and the kill of what it waits for.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		b := New(Config{
			Programs: map[string]Program{
				"/worker": func(ctx context.Context, c Call) int {
					if _, err := io.Copy(c.Socket, c.Socket); err != nil {
						return 1
					}
					return 0
				},
				"/attacker": attacker,
			},
			Socket: func(id string) (net.Conn, error) { return theirs, nil },
		})
		l := sandbox.Limits{MemoryBytes: 1, CPUMillis: 1, PIDs: 1, DiskBytes: 1, Timeout: time.Hour, OutputBytes: 100}
		g, err := b.Group(t.Context(), "one", l)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		done := make(chan sandbox.Exit)
		go func() {
			e, err := g.Run(t.Context(), sandbox.Process{Role: sandbox.RoleWorker, Argv: []string{"/worker"}})
			if err != nil {
				t.Error(err)
			}
			done <- e
		}()
		if _, err := ours.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ours, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if e := <-done; !e.Timeout {
			t.Errorf("a worker without end: %+v", e)
		}
		if d := time.Since(began); d != l.Timeout {
			t.Errorf("its time limit of %v took %v", l.Timeout, d)
		}
		go func() {
			time.Sleep(time.Minute)
			if err := g.Kill(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		e, err := g.Run(t.Context(), sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/attacker", "sleep"}})
		if err != nil || !e.Killed || time.Since(began) != l.Timeout+time.Minute {
			t.Errorf("a killed sleeper: %+v, %v after %v", e, err, time.Since(began))
		}
		if removed, err := b.Sweep(t.Context(), nil); err != nil || len(removed) != 1 || removed[0] != "one" {
			t.Errorf("the sweep removed %v, %v", removed, err)
		}
	})
}

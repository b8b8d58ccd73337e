package edge

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// takerEnv names the attempt's directory that this test's program takes, as the task of
// another scheduler does.
const takerEnv = "EDGE_TEST_TAKES"

// TestTakerProcess is that program, and nothing without its environment.
func TestTakerProcess(t *testing.T) {
	path := os.Getenv(takerEnv)
	if path == "" {
		t.Skip("a process of other tests")
	}
	_, a, err := state.OpenAttempt(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(protocol.AllocationJob(a.ID, 1), testAlloc); err != nil {
		t.Fatal(err)
	}
	io.WriteString(os.Stdout, "held\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // at the latest with who started it
}

// A supervisor that Nomad started is found by its mark, whatever its command line is, is
// the only one that runs there, and is ended by its number, which is nobody else's.
func TestProcessOfAnAllocation(t *testing.T) {
	dir, err := state.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(newAttempt())
	if err := a.Expect(protocol.AllocationJob(a.ID, 1), nil); err != nil {
		t.Fatal(err)
	}
	p := &Processes{Command: []string{os.Args[0], "-test.run=^$"}, Env: []string{"EDGE_TEST_SUPERVISOR=1"},
		Connect: func(string) *http.Client { return &http.Client{} }}
	if pid := pidOf(a); pid != 0 {
		t.Fatalf("before it was taken: %d", pid)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTakerProcess$")
	cmd.Env = append(os.Environ(), takerEnv+"="+a.Path())
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("held\n"))); err != nil {
		t.Fatal(err)
	}
	if pid := pidOf(a); pid != cmd.Process.Pid {
		t.Fatalf("found %d, want %d", pid, cmd.Process.Pid)
	}
	if err := p.Start(t.Context(), a); protocol.CodeOf(err) != protocol.CodeUnavailable || pidOf(a) != cmd.Process.Pid {
		t.Errorf("another one beside it: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Kill(ctx, a); err != nil { // it is not collected yet, and not alive
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL || pidOf(a) != 0 {
		t.Errorf("it ended with %v, and %d is left", s, pidOf(a))
	}
	// Now what is left has somebody for its records.
	if err := p.Start(t.Context(), a); err != nil || pidOf(a) == 0 {
		t.Fatalf("after its end: %v", err)
	}
	if err := p.Kill(ctx, a); err != nil || pidOf(a) != 0 {
		t.Errorf("kill: %v", err)
	}
}

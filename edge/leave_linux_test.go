package edge

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// holderEnv makes this test's program the daemon of a directory that answers nobody.
const holderEnv, deafEnv = "EDGE_TEST_HOLDS", "EDGE_TEST_DEAF"

// TestHolderProcess is that program, and nothing without its environment.
func TestHolderProcess(t *testing.T) {
	path := os.Getenv(holderEnv)
	if path == "" {
		t.Skip("a process of other tests")
	}
	if os.Getenv(deafEnv) != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	dir, err := state.At(path)
	if err != nil {
		t.Fatal(err)
	}
	release, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release() // and not before: a lock that nothing refers to is collected
	io.WriteString(os.Stdout, "held\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // at the latest with who started it
}

// holding starts the process and returns when it has the lock, with how to wait for its end.
func holding(t *testing.T, dir *state.Dir, env ...string) (wait func() error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHolderProcess$")
	cmd.Env = append(append(os.Environ(), holderEnv+"="+dir.Path()), env...)
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
	return cmd.Wait
}

// A daemon whose socket is gone is ended by force before anything is wiped, whether it
// listens to a service manager's word or not. Without force it stays, and so does all
// that it needs.
func TestForcedLeaveEndsADaemonWithoutASocket(t *testing.T) {
	for name, env := range map[string]string{"TERM": "", "KILL": deafEnv + "=yes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both wait for the daemon in vain first
			f := newFakeServer(t)
			m := enrolled(t, f)
			wait := holding(t, m.dir, env)
			p := LeaveParams{State: m.dir, Network: m.cfg.Network, Supervisors: m.cfg.Supervisors}
			if _, err := Leave(t.Context(), p); err == nil || !strings.Contains(err.Error(), "another bivouac-edge runs") || !m.dir.Joined() || !m.dir.HasKey() {
				t.Fatalf("without force: %v", err)
			}
			p.Force = true
			if _, err := Leave(t.Context(), p); err != nil || m.dir.Joined() || m.dir.HasKey() {
				t.Fatalf("with force: %v", err)
			}
			var ended *exec.ExitError
			if err := wait(); !errors.As(err, &ended) || !ended.Sys().(syscall.WaitStatus).Signaled() {
				t.Errorf("the daemon ended with %v", err)
			}
		})
	}
}

// A turn that cannot be ended keeps the state: what would find it again is not wiped.
func TestLeaveKeepsWhatItCannotEnd(t *testing.T) {
	f := newFakeServer(t)
	m := enrolled(t, f)
	if _, err := m.dir.Attempt(newAttempt()).Make(); err != nil {
		t.Fatal(err)
	}
	p := LeaveParams{State: m.dir, Network: m.cfg.Network, Supervisors: immortal{m.cfg.Supervisors}, Force: true}
	if _, err := Leave(t.Context(), p); protocol.CodeOf(err) != protocol.CodeUnavailable || !m.dir.Joined() {
		t.Fatalf("with a turn that goes on: %v", err)
	}
	p.Supervisors = m.cfg.Supervisors
	if _, err := Leave(t.Context(), p); err != nil || m.dir.Joined() {
		t.Errorf("without: %v", err)
	}
}

// immortal are supervisors that nothing ends.
type immortal struct{ Spawner }

func (immortal) Kill(context.Context, state.Attempt) error { return errors.New("it lives") }

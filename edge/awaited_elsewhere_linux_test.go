package edge

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// elsewhere makes a directory one of a daemon in another PID namespace, until here.
func elsewhere(t *testing.T, a state.Attempt) (here func()) {
	t.Helper()
	file := filepath.Join(a.Path(), "allocation")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(bytes.ReplaceAll(b, []byte(state.PIDNamespace()), []byte("pid:[1]")))
	return func() { write(b) }
}

// Beside a supervisor that lives where this machine does not see it none is started, and
// nothing is said to have been ended. INV-14.
func TestSupervisorElsewhere(t *testing.T) {
	dir, err := state.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(newAttempt())
	job := protocol.AllocationJob(a.ID, 1)
	if err := a.Expect(job, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(job, testAlloc); err != nil {
		t.Fatal(err)
	}
	release, err := a.Supervise()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere(t, a)
	p := &Processes{Command: []string{os.Args[0], "-test.run=^$"}, Env: []string{"EDGE_TEST_SUPERVISOR=1"},
		Connect: func(string) *http.Client { return &http.Client{} }}
	if err := p.Start(t.Context(), a); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), job) {
		t.Errorf("another one beside it: %v", err)
	}
	if err := p.Kill(t.Context(), a); protocol.CodeOf(err) != protocol.CodeUnavailable || pidOf(a) != 0 {
		t.Errorf("it is said to have ended: %v, process %d", err, pidOf(a))
	}
	release()
	if err := p.Kill(t.Context(), a); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := p.Start(t.Context(), a); err != nil || pidOf(a) == 0 {
		t.Errorf("after its end: %v", err)
	}
	if err := p.Kill(t.Context(), a); err != nil || pidOf(a) != 0 {
		t.Errorf("kill: %v, process %d", err, pidOf(a))
	}
}

// A daemon that was started again in another PID namespace claims nothing for a supervisor
// that it could not end, and does not take it for dead; what nobody took is waited for anew.
func TestDaemonStartsElsewhere(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		elsewhere(t, a)
		m.run()
		m.connected()
		if m.expects(a.ID, job); !a.Sees() {
			t.Error("a task would be taken that this daemon does not see")
		}
		w := m.task(a, job)
		release, err := a.Supervise()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		here := elsewhere(t, a)
		time.Sleep(2 * time.Minute)
		if n, _ := f.claimsOf(a.ID); n != 0 || f.declinedFor(a.ID) != "" || !a.Exists() {
			t.Errorf("%d claims, declined with %q", n, f.declinedFor(a.ID))
		}
		if said := m.daemon.Status().LastError; !strings.Contains(said, job) {
			t.Errorf("status says %q", said)
		}
		here()
		m.await("the turn to begin", time.Minute, func() bool { return w.see(func() bool { return w.begun != nil }) })
	})
}

package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// elsewhere makes the directory one of a daemon in another PID namespace.
func elsewhere(t *testing.T, a Attempt) {
	t.Helper()
	if PIDNamespace() == "" {
		t.Skip("this system has no namespaces of processes")
	}
	file := filepath.Join(a.Path(), allocationFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(b), PIDNamespace(), "pid:[1]")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A supervisor that lives in another PID namespace is not taken for dead: its lock says
// that it lives, and that it is not seen. INV-14.
func TestTakerInAnotherNamespace(t *testing.T) {
	a, job := expected(t, 1)
	m, err := a.Take(job, allocID)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Sees() || !a.Runs(m) || a.Unseen() != nil {
		t.Errorf("twin: one that is seen: %v %v %v", a.Sees(), a.Runs(m), a.Unseen())
	}
	release, err := a.Supervise()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Runs(m) || a.Unseen() != nil {
		t.Errorf("twin: one that is seen, at work: %v %v", a.Runs(m), a.Unseen())
	}
	dead := m
	dead.PID = 1 << 30
	if a.Runs(dead) {
		t.Error("twin: one that is seen, and is dead, runs")
	}
	elsewhere(t, a)
	if err := a.Unseen(); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), job) || !strings.Contains(err.Error(), "raw_exec") {
		t.Errorf("one that lives elsewhere: %v", err)
	}
	if a.Sees() || !a.Runs(dead) {
		t.Errorf("one that lives elsewhere: seen %v, runs %v", a.Sees(), a.Runs(dead))
	}
	release()
	if a.Runs(m) || a.Unseen() != nil {
		t.Errorf("one that has ended: runs %v, %v", a.Runs(m), a.Unseen())
	}
}

// One supervisor runs in a directory. INV-14.
func TestOneSupervisorRuns(t *testing.T) {
	a, _ := expected(t, 1)
	release, err := a.Supervise()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Supervise(); protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), a.ID.String()) {
		t.Errorf("a second one: %v", err)
	}
	release()
	again, err := a.Supervise()
	if err != nil {
		t.Fatalf("after its end: %v", err)
	}
	again()
}

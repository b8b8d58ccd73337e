package edge

import (
	"context"
	"net/http"
	"os"
	ossignal "os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/state"
)

// TestMain is also the process that stands in for a supervisor.
func TestMain(m *testing.M) {
	if os.Getenv("EDGE_TEST_SUPERVISOR") != "" {
		ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGHUP)
		defer stop()
		<-ctx.Done()
		return
	}
	os.Exit(m.Run())
}

func TestProcessesOutliveASignalAndDieByKill(t *testing.T) {
	dir, err := state.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(newAttempt())
	if _, err := a.Make(); err != nil {
		t.Fatal(err)
	}
	p := &Processes{
		Command: []string{os.Args[0], "-test.run=^$"}, Env: []string{"EDGE_TEST_SUPERVISOR=1"},
		Connect: func(string) *http.Client { return &http.Client{} },
	}
	t.Setenv("SECRET_OF_THE_DAEMON", "canary")
	if err := p.Start(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	pid := pidOf(a)
	if pid == 0 {
		t.Fatal("the process is not found")
	}
	if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
		t.Errorf("it has not a session of its own: %d %v", sid, err)
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil || string(env) != "EDGE_TEST_SUPERVISOR=1\x00" {
		t.Errorf("its environment is %q, %v (INV-17)", env, err)
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/mnt"); err != nil || (theirs != ours) != (os.Geteuid() == 0) {
		t.Errorf("it mounts in %s, we in %s, %v (INV-18)", theirs, ours, err)
	}
	other := dir.Attempt(newAttempt())
	if err := p.Kill(t.Context(), other); err != nil || pidOf(a) != pid {
		t.Errorf("killing another one's: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Kill(ctx, a); err != nil || pidOf(a) != 0 {
		t.Errorf("kill: %v, still %d", err, pidOf(a))
	}
	p.Reap()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("it was not reaped: %v", err)
	}
}

// A number that another process has now is not killed.
func TestPidOfAnotherProgramIsNotBelieved(t *testing.T) {
	dir, err := state.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(newAttempt())
	if _, err := a.Make(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.Path()+"/pid", strconv.AppendInt(nil, int64(os.Getpid()), 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := pidOf(a); pid != 0 {
		t.Errorf("believed %d", pid)
	}
}

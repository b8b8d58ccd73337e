package edge

import (
	"context"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// controlled is a daemon in real time whose server is away: the owner's commands
// need no network.
func controlled(t *testing.T) (*state.Dir, func() error) {
	t.Helper()
	f := newFakeServer(t)
	f.stop()
	return startControlled(t, enrolled(t, f))
}

func startControlled(t *testing.T, m *machine) (*state.Dir, func() error) {
	t.Helper()
	listens := make(chan error, 1)
	m.cfg.Control = func() (net.Listener, error) {
		l, err := ListenControl(m.dir)
		listens <- err
		return l, err
	}
	d, err := New(m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) })
	m.stop = sync.OnceValue(func() error { cancel(); return g.Wait() })
	t.Cleanup(func() { _ = m.stop() })
	if err := <-listens; err != nil {
		t.Fatal(err)
	}
	return m.dir, m.stop
}

func TestOwnersCommandsWorkWithoutANetwork(t *testing.T) {
	dir, stop := controlled(t)
	ctx := t.Context()
	s, err := AskStatus(ctx, dir)
	if err != nil || s.Connected || s.Name != "desk" || s.Paused {
		t.Fatalf("%+v, %v", s, err)
	}
	if running, err := Pause(ctx, dir, nil); err != nil || !running || !dir.Paused() {
		t.Fatalf("pause: %v %v", running, err)
	}
	if s, _ := AskStatus(ctx, dir); !s.Paused {
		t.Error("status does not say that it is paused")
	}
	if running, err := Resume(ctx, dir); err != nil || !running || dir.Paused() {
		t.Fatalf("resume: %v %v", running, err)
	}
	if _, err := dir.Lock(); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("a second daemon: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := AskStatus(ctx, dir); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-edge run") {
		t.Errorf("status without a daemon: %v", err)
	}
	if running, err := Pause(ctx, dir, nil); err != nil || running || !dir.Paused() {
		t.Errorf("pause without a daemon: %v %v", running, err)
	}
}

func TestControlSocketIsTheOwnersAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes of sockets")
	}
	dir, _ := controlled(t)
	info, err := os.Stat(dir.Control())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info, err)
	}
}

// Leaving ends a running daemon without an error, though the server ends its
// stream as that of a stranger.
func TestLeaveEndsTheRunningDaemon(t *testing.T) {
	f := newFakeServer(t)
	m := enrolled(t, f)
	dir, _ := startControlled(t, m)
	for s, err := AskStatus(t.Context(), dir); !s.Connected; s, err = AskStatus(t.Context(), dir) {
		if err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if left, err := Leave(t.Context(), LeaveParams{State: dir, Supervisors: m.cfg.Supervisors}); err != nil || left.Untold != "" || left.Name != "desk" {
		t.Fatalf("%+v, %v", left, err)
	}
	if err := m.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if dir.Joined() || !get(f, func() bool { return f.forgot }) {
		t.Error("left, but something still knows the runner")
	}
}

// A server that cannot be told keeps the runner; with force the daemon ends first, all
// is wiped, and what the server was not told is said.
func TestForcedLeaveEndsTheRunningDaemon(t *testing.T) {
	f := newFakeServer(t)
	f.stop()
	m := enrolled(t, f)
	dir, _ := startControlled(t, m)
	if _, err := AskStatus(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	p := LeaveParams{State: dir, Supervisors: m.cfg.Supervisors}
	if _, err := Leave(t.Context(), p); err == nil || !strings.Contains(err.Error(), "leave --force") || !dir.Joined() || !dir.HasKey() {
		t.Fatalf("without force: %v", err)
	}
	if _, err := AskStatus(t.Context(), dir); err != nil {
		t.Errorf("the daemon after a leaving that was refused: %v", err)
	}
	p.Force = true
	if left, err := Leave(t.Context(), p); err != nil || left.Untold == "" || left.Name != "desk" {
		t.Fatalf("with force: %+v, %v", left, err)
	}
	if err := m.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if _, err := os.Stat(dir.Control()); dir.Joined() || dir.HasKey() || err == nil {
		t.Error("left, and something is left")
	}
}

// One directory serves one daemon.
func TestSecondDaemonIsRefused(t *testing.T) {
	dir, _ := controlled(t)
	if _, err := AskStatus(t.Context(), dir); err != nil { // it holds the lock now
		t.Fatal(err)
	}
	second, err := New(Config{State: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "another bivouac-edge") {
		t.Errorf("got %v", err)
	}
}

// A child of a dead daemon that still has its socket is no daemon.
func TestSocketOfADeadDaemonIsReplaced(t *testing.T) {
	f := newFakeServer(t)
	f.stop()
	m := enrolled(t, f)
	inherited, err := net.Listen("unix", m.dir.Control())
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	inherited.(*net.UnixListener).SetUnlinkOnClose(false)
	dir, _ := startControlled(t, m)
	if s, err := AskStatus(t.Context(), dir); err != nil || s.Name != "desk" {
		t.Errorf("%+v, %v", s, err)
	}
}

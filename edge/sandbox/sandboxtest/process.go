package sandboxtest

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/sandbox"
)

var groups atomic.Int64

// group makes a group that ends with the test.
func group(t *testing.T, b sandbox.Backend, l sandbox.Limits) sandbox.Group {
	t.Helper()
	g, err := b.Group(t.Context(), groupID(), l)
	if err != nil {
		t.Fatalf("make a group: %v", err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close the group: %v", err)
		}
	})
	return g
}

func groupID() string {
	return "suite-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(groups.Add(1), 10)
}

// code is a process of sandbox B that runs the attacker.
func (c Config) code(args ...string) sandbox.Process {
	p := sandbox.Process{Role: sandbox.RoleCode, Argv: append([]string{c.Program}, args...), Env: []string{"PATH=/usr/bin:/bin"}}
	if c.Attacker != "" {
		p.Binds = []sandbox.Bind{{Host: c.Attacker, Inside: c.Program}}
	}
	return p
}

// shell is a process of sandbox B that runs a script.
func (c Config) shell(script string) sandbox.Process {
	p := c.code()
	p.Argv = []string{"/bin/sh", "-c", script}
	return p
}

// result is what a run left behind.
type result struct {
	exit     sandbox.Exit
	err      error
	out, log string
}

func run(ctx context.Context, g sandbox.Group, p sandbox.Process) result {
	var out, log bytes.Buffer
	if p.Stdout == nil {
		p.Stdout = &out
	}
	p.Stderr = &log
	e, err := g.Run(ctx, p)
	return result{e, err, out.String(), log.String()}
}

// started is a process that runs in the background.
type started struct {
	up   chan struct{} // closed at its first output
	done chan result
}

// start runs p and waits until it says something.
func start(t *testing.T, ctx context.Context, g sandbox.Group, p sandbox.Process) *started {
	t.Helper()
	s := &started{up: make(chan struct{}), done: make(chan result, 1)}
	p.Stdout = &signaller{up: s.up}
	go func() { s.done <- run(ctx, g, p) }()
	select {
	case <-s.up:
	case r := <-s.done:
		t.Fatalf("the process did not start: %+v", r)
	case <-time.After(time.Minute):
		t.Fatal("the process did not start")
	}
	return s
}

// signaller closes up at the first line.
type signaller struct {
	up   chan struct{}
	said bool
}

func (s *signaller) Write(p []byte) (int, error) {
	if !s.said && bytes.ContainsRune(p, '\n') {
		s.said = true
		close(s.up)
	}
	return len(p), nil
}

// wait is the end of a started process.
func (s *started) wait(t *testing.T) result {
	t.Helper()
	select {
	case r := <-s.done:
		return r
	case <-time.After(time.Minute):
		t.Fatal("the process did not end")
		return result{}
	}
}

// withToken lists the host's processes whose command line has a text that no
// other has.
func withToken(t *testing.T, token string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), token) {
			pids = append(pids, pid)
		}
	}
	return pids
}

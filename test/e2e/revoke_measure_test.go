//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/server/broker/scripted"
	"bivouac/test/e2e/stack"
)

// measures are instants, counted from the record of a revocation.
type measures struct {
	since time.Time
	names []string
	at    map[string]time.Time
}

func (m *measures) add(name string, at time.Time) {
	if m.at == nil {
		m.at = map[string]time.Time{}
	}
	m.names, m.at[name] = append(m.names, name), at
}

// judge prints them all and demands that each happened, within the bound.
func (m *measures) judge(t *testing.T, what string) {
	t.Helper()
	line := "revoke " + what
	for _, name := range m.names {
		after := m.at[name].Sub(m.since)
		line += fmt.Sprintf(" %s_ms=%.1f", name, float64(after)/1e6)
		if m.at[name].IsZero() || after > revokeBound {
			t.Errorf("%s: %s happened %s after the record", what, name, after)
		}
	}
	t.Log(line)
}

// lastOf is the arrival of the newest request.
func lastOf(all []scripted.Received) (last time.Time) {
	for _, r := range all {
		if r.At.After(last) {
			last = r.At
		}
	}
	return last
}

// open counts a rule's answers that go on.
func open(s *stack.Stack, rule string) (n int) {
	for _, r := range receivedBy(s, rule) {
		if r.EndedAt.IsZero() {
			n++
		}
	}
	return n
}

// attemptProcesses are the supervisor of a machine's one attempt and all its
// descendants, whatever session or group they moved to.
func attemptProcesses(t *testing.T, e *stack.Edge) []int {
	t.Helper()
	tree := processes(t, func(argv []string) bool { return len(argv) > 1 && argv[1] == "supervise" && within(argv, e.State) })
	children := map[int][]int{}
	for _, pid := range processes(t, func([]string) bool { return true }) {
		children[parentOf(pid)] = append(children[parentOf(pid)], pid)
	}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree
}

func parentOf(pid int) int {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// asleep is a machine's one attempt with the command of commandRule, when all of it
// runs.
func asleep(t *testing.T, e *stack.Edge) ([]int, error) {
	t.Helper()
	tree := attemptProcesses(t, e)
	if n := sleeping(tree); n != 4 {
		return tree, fmt.Errorf("%d of 4 sleep", n)
	}
	return tree, nil
}

// sleeping counts the sleeps of a process tree.
func sleeping(tree []int) (n int) {
	for _, pid := range tree {
		line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.HasPrefix(string(line), "sleep\x00"+nap) {
			n++
		}
	}
	return n
}

// watchEnd looks for the end of processes from now on; the returned function waits
// for it and says when the last one was gone.
func watchEnd(tree []int) func(*testing.T) time.Time {
	gone := make(chan time.Time, 1)
	go func() {
		begun := time.Now()
		for slices.ContainsFunc(tree, alive) && time.Since(begun) < time.Minute {
			time.Sleep(2 * time.Millisecond)
		}
		gone <- time.Now()
	}()
	return func(t *testing.T) time.Time {
		t.Helper()
		at := <-gone
		if slices.ContainsFunc(tree, alive) {
			t.Errorf("processes of %v are alive", tree)
		}
		return at
	}
}

// alive is false of a process that is gone or only waits to be reaped.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bivouac/test/e2e/stack"
)

// answering says that the provider is in the middle of a rule's answer.
func answering(s *stack.Stack, rule string) error {
	for _, r := range receivedBy(s, rule) {
		if r.EndedAt.IsZero() {
			return nil
		}
	}
	return fmt.Errorf("the rule %q does not answer", rule)
}

// killMachine ends everything that runs on a machine at once, as a power failure
// does: its daemon, its supervisors, and with these their sandboxes.
func killMachine(t *testing.T, e *stack.Edge) {
	t.Helper()
	pids := processes(t, func(argv []string) bool { return len(argv) > 1 && argv[1] == "supervise" && within(argv, e.State) })
	if len(pids) == 0 {
		t.Fatalf("machine %s runs no supervisor: nothing would be interrupted", e.Name)
	}
	if err := e.Daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	await(t, "the end of the machine's processes", func() error {
		if left := processes(t, func(argv []string) bool { return within(argv, e.State) }); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
}

// within says that an argument names something below a directory.
func within(argv []string, dir string) bool {
	for _, a := range argv {
		if strings.Contains(a, dir) {
			return true
		}
	}
	return false
}

// processes are the numbers of this machine's living processes whose command line
// matches.
func processes(t *testing.T, match func(argv []string) bool) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil || len(line) == 0 {
			continue // it ended, or is the kernel's or a zombie
		}
		var argv []string
		for _, a := range bytes.Split(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
			argv = append(argv, string(a))
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && pid != os.Getpid() && match(argv) {
			pids = append(pids, pid)
		}
	}
	return pids
}

//go:build linux

package bubblewrap

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/cgroup"
)

// TestProbe sees the machine of the tests, and keeps what it saw.
func TestProbe(t *testing.T) {
	b := shared()
	first := b.Probe(t.Context())
	if first.Boundary != protocol.BoundaryProcess || first.Limits == "" || first.Disk != sandbox.DiskWatched && (first.Disk != sandbox.DiskSized || first.Rootless) {
		t.Fatalf("the probe found %+v", first)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if again := b.Probe(cancelled); again != first {
		t.Errorf("the second probe found %+v", again)
	}
	fresh := testBackend()
	if r := fresh.Probe(cancelled); r.Boundary != "" {
		t.Errorf("a cancelled probe found %+v", r)
	}
	if fresh.report != nil {
		t.Error("a cancelled probe was kept")
	}
}

// TestProbeOfAnotherProcess takes what that saw where the rights are the same, and looks
// itself where they are not: a report of control groups gives none. INV-11.
func TestProbeOfAnotherProcess(t *testing.T) {
	const theirs = "another process saw it"
	same := sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup, Freezer: "theirs", Rootless: testBackend().keepsUID, Problem: theirs}
	if _, err := testBackend().detect(); err != nil {
		same.Limits, same.Freezer = protocol.LimitsRlimit, ""
	}
	other := same
	other.Rootless = !same.Rootless
	asked := 0
	look := func(r sandbox.Report, prepare func(*Backend)) sandbox.Report {
		t.Helper()
		b := New(Config{Path: "/absent/bwrap", CgroupParent: testParent, SeenFunc: func() sandbox.Report { asked++; return r }})
		if asked != 0 {
			t.Error("it was asked before the probe: the other process may not have looked yet")
		}
		prepare(b)
		defer func() { asked = 0 }()
		return b.Probe(t.Context())
	}
	if got := look(same, func(*Backend) {}); got != same {
		t.Errorf("with the same rights: %+v, want %+v", got, same)
	}
	without := func(b *Backend) {
		b.detect = func() (*cgroup.Tree, error) { return nil, errors.New("none here") }
	}
	grouped := sandbox.Report{Boundary: same.Boundary, Limits: protocol.LimitsCgroup, Rootless: same.Rootless, Problem: theirs}
	for name, got := range map[string]sandbox.Report{
		"nothing was seen":                          look(sandbox.Report{Problem: theirs}, func(*Backend) {}),
		"another identity":                          look(other, func(*Backend) {}),
		"limits by control groups, and none here":   look(grouped, without),
		"a freezer, and no control groups are here": look(sandbox.Report{Boundary: same.Boundary, Limits: protocol.LimitsRlimit, Freezer: "theirs", Rootless: same.Rootless}, without),
	} {
		if got.Boundary != "" || !strings.Contains(got.Problem, "apt-get install bubblewrap") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	single := sandbox.Report{Boundary: same.Boundary, Limits: protocol.LimitsRlimit, Rootless: same.Rootless, Problem: theirs}
	if got := look(single, without); got != single {
		t.Errorf("limits for single processes, as here: %+v", got)
	}
}

// TestProbeWithoutBubblewrap tells how to get it, and Group refuses to go on.
func TestProbeWithoutBubblewrap(t *testing.T) {
	for name, cfg := range map[string]Config{
		"a path that is absent": {Path: "/absent/bwrap", CgroupParent: testParent},
		"nothing in PATH":       {CgroupParent: testParent},
	} {
		if cfg.Path == "" {
			t.Setenv("PATH", t.TempDir())
		}
		b := New(cfg)
		if r := b.Probe(t.Context()); r.Boundary != "" || !strings.Contains(r.Problem, "apt-get install bubblewrap") {
			t.Errorf("%s: %+v", name, r)
		}
		g, err := b.Group(t.Context(), "without", probeLimits)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Run(t.Context(), sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/bin/true"}})
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "apt-get install bubblewrap") {
			t.Errorf("%s: a process: %v", name, err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestProbeWithOtherPrograms refuses what is too old or is not bubblewrap.
func TestProbeWithOtherPrograms(t *testing.T) {
	for says, want := range map[string]string{
		"bubblewrap 0.6.1": "0.8.0 is needed",
		"busybox 1.36":     "is not bubblewrap",
	} {
		path := filepath.Join(t.TempDir(), "bwrap")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if r := New(Config{Path: path}).Probe(t.Context()); r.Boundary != "" || !strings.Contains(r.Problem, want) {
			t.Errorf("%s: %+v", says, r)
		}
	}
}

const reportVariable = "BIVOUAC_SUITE_REPORT"

// TestProbeWithoutUserNamespaces runs a probe where they are switched off, which
// a user namespace can do to itself. The same probe finds a sandbox before.
func TestProbeWithoutUserNamespaces(t *testing.T) {
	probe := func(before string) string {
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sh", "-c", before+` && exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), reportVariable+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Skipf("no user namespace for the test: %v: %s", err, out)
		}
		return string(out)
	}
	if out := probe("true"); !strings.Contains(out, "Boundary:process") || !strings.Contains(out, "Rootless:true") {
		t.Errorf("with user namespaces the probe found %s", out)
	}
	out := probe("echo 0 > /proc/sys/user/max_user_namespaces")
	if !strings.Contains(out, "Boundary: ") || !strings.Contains(out, "sysctl -w user.max_user_namespaces") {
		t.Errorf("without user namespaces the probe found %s", out)
	}
}

func TestMapped(t *testing.T) {
	for _, c := range []struct {
		text string
		uid  int
		want bool
	}{
		{"         0          0 4294967295\n", DefaultUID, true},
		{"0 1000 1\n", DefaultUID, false},
		{"0 1000 1\n1 100000 65536\n", DefaultUID, true},
		{"0 1000 1\n1 100000 65536\n", 70000, false},
	} {
		if got := mapped(c.text, c.uid); got != c.want {
			t.Errorf("uid %d in %q: %v", c.uid, c.text, got)
		}
	}
}

// TestSpawner is never on the main thread, which cannot end: its control group
// would own the memory of the whole process.
func TestSpawner(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		s, err := newSpawner(func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		s.do(func() { seen[gettid()] = true })
		defer s.stop()
	}
	if seen[os.Getpid()] {
		t.Error("a spawner runs on the main thread")
	}
	if len(seen) != 20 {
		t.Errorf("20 spawners share %d threads", len(seen))
	}
}

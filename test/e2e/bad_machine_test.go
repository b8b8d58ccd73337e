//go:build linux

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/test/e2e/stack"
)

var errNotYet = errors.New("not yet")

// A machine without bubblewrap, or whose kernel gives no user namespaces, is
// connected and does device actions. A turn that needs a sandbox is deferred, never
// run without one; edge list, explain and the machine's own status say why and what
// to do, and when that is done the same turn runs.
func TestBadSandbox(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("SKIPPED LOUDLY: bubblewrap is not installed, so it cannot be taken away")
	}
	p := newBad(t)
	for name, c := range map[string]struct {
		lacking func(*exec.Cmd)
		says    string
	}{
		"no bubblewrap":      {withoutBubblewrap(t), "bubblewrap|bwrap"},
		"no user namespaces": {withoutNamespaces, "user namespaces?"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no user namespaces" {
				mayMakeNamespaces(t)
			}
			p := newPerson(t, p.Stack, "", strings.ReplaceAll(name, " ", "-"), false)
			p.must("grant", "create", "--agent", "assistant")
			p.must("grant", "create", "--agent", "coder")
			p.noSandbox(c.lacking, c.says)
		})
	}
}

func (p *person) noSandbox(lacking func(*exec.Cmd), says string) {
	t := p.t
	t.Helper()
	notes := filepath.Join(p.home, "notes")
	p.write(filepath.Join(notes, "todo.txt"), "buy bread\n", 0o644)
	into := lacking
	edge := p.addEdge(stack.EdgeConfig{Name: p.name, Folders: []string{"notes=" + notes + ":rw"}, Place: stack.Place{Into: func(cmd *exec.Cmd) { into(cmd) }}})
	list := p.must("edge", "list")
	matches(t, list, p.name+` +connected .* none +files\.digest files\.list files\.read files\.write`, p.name+" takes no turns in sandboxes: .*("+says+")", "(?i)install|sysctl|kernel|allow")
	status, err := edge.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	matches(t, status.SandboxProblem, says)
	matches(t, p.must("chat", "read notes/todo.txt"), "I got: .*buy bread")

	turn := p.submit("run", "run: echo it ran", "--workspace", p.project("work", map[string]string{"a.txt": "a\n"}))
	explained := ""
	await(t, "the turn is deferred", func() error {
		if explained = p.must("explain", turn.ID); !strings.Contains(explained, "a runner: ") {
			return errNotYet
		}
		return nil
	})
	matches(t, explained, turn.ID+"  RECEIVED, for ", p.name+` +no +.*(`+says+`)`, "(?m)^try: "+p.name+": ")
	if state := p.turn(turn.ID); len(state.GetAttempts()) != 1 || state.GetAttempts()[0].GetState() != "QUEUED" {
		t.Errorf("it did not wait: %v", state.GetAttempts())
	}

	// What was lacking is put right, and the daemon started again.
	if err := edge.Daemon.End(); err != nil {
		t.Fatal(err)
	}
	into = func(*exec.Cmd) {}
	if err := edge.Daemon.Start(); err != nil {
		t.Fatal(err)
	}
	if done := p.completed(turn.ID); !strings.Contains(done.GetAnswer(), "it ran") {
		t.Errorf("it answered %q", done.GetAnswer())
	}
	if out := p.must("edge", "list"); strings.Contains(out, "takes no turns in sandboxes") {
		t.Errorf("the list still says:\n%s", out)
	}
}

// withoutBubblewrap is a search path with everything but bwrap.
func withoutBubblewrap(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"git", "sh", "cat", "env"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return func(cmd *exec.Cmd) {
		for i, e := range cmd.Env {
			if strings.HasPrefix(e, "PATH=") {
				cmd.Env[i] = "PATH=" + dir
			}
		}
	}
}

// withoutNamespaces runs a command where the kernel makes no more user namespaces,
// as some distributions set it up.
func withoutNamespaces(cmd *exec.Cmd) {
	const script = `echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"`
	cmd.Args = append([]string{"unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/unshare"
}

func mayMakeNamespaces(t *testing.T) {
	t.Helper()
	cmd := exec.Command("true")
	withoutNamespaces(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("SKIPPED LOUDLY: this machine makes no user namespace in which to forbid them: %v %s", err, out)
	}
}

// With no machine at all a turn waits too, and the command that explain names
// changes that.
func TestBadNothingFits(t *testing.T) {
	p := newBad(t)
	turn := p.submit("run", "run: echo it ran", "--workspace", p.project("work", map[string]string{"a.txt": "a\n"}))
	await(t, "the turn is deferred", func() error {
		if !strings.Contains(p.must("explain", turn.ID), "try: bivouac edge invite") {
			return errNotYet
		}
		return nil
	})
	matches(t, p.must("explain", turn.ID), turn.ID+"  RECEIVED, for [0-9.]+ s\n", "a runner: you have no machine that takes turns")
	// A machine that takes none is named, with its reason and what its owner does.
	edge, err := p.Join(t.Context(), stack.EdgeConfig{Name: "tablet", Owner: p.api})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), "bivouac-edge", "pause", "--state", edge.State); err != nil {
		t.Fatal(err)
	}
	if err := edge.Daemon.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the machine is named", func() error {
		if !strings.Contains(p.must("explain", turn.ID), "resume") {
			return errNotYet
		}
		return nil
	})
	matches(t, p.must("explain", turn.ID), `(?m)^run_[0-9a-z]{26} +tablet +no +.*paused`, `(?m)^try: tablet: .*bivouac-edge resume`)
	if _, err := p.Run(t.Context(), "bivouac-edge", "resume", "--state", edge.State); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("SKIPPED LOUDLY: bubblewrap is not installed, so the turn cannot run")
	}
	if done := p.completed(turn.ID); !strings.Contains(done.GetAnswer(), "it ran") {
		t.Errorf("it answered %q", done.GetAnswer())
	}
}

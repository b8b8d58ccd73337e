package harness_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/sandbox/twin"
	"bivouac/edge/workspace"
	"bivouac/test/harness"
)

// fixer is a model that learns what a failing test wants from its output.
const fixer = `
rule "run it" {
  when {
    user_contains = "failing test"
    results       = 0
  }
  call "shell" {
    arguments = { command = "make test" }
  }
}
rule "fix it" {
  when {
    result_of      = "shell"
    result_matches = "want (?P<nonce>[A-Z0-9]+)"
  }
  call "write_file" {
    arguments = { path = "answer.txt", content = result.nonce }
  }
}
rule "run it again" {
  when { result_of = "write_file" }
  call "shell" {
    arguments = { command = "make test" }
  }
}
rule "it passes" {
  when { result_contains = "ok" }
  text = "The test passes now."
}
`

// The coding turn end to end: a packed workspace, a failing test whose expectation
// is known to nobody but the test, a patch that mends it.
func TestCodingTurnMakesAFailingTestPass(t *testing.T) {
	nonce := rand.Text()
	test := func(_ context.Context, c twin.Call) int {
		got, err := os.ReadFile(filepath.Join(c.Workspace, "answer.txt"))
		if err != nil || string(got) != nonce {
			fmt.Fprintf(c.Stdout, "got %s, want %s\n", got, nonce)
			return 1
		}
		fmt.Fprintln(c.Stdout, "ok")
		return 0
	}
	o := harness.Options{Script: fixer, Commands: map[string]twin.Program{"make test": test}}
	harness.Test(t, o, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		alice.Apply(coder)
		dir := repository(t, map[string]string{"answer.txt": "not yet", "README.md": "a project\n"})
		turn := alice.SubmitOn(alice.Open("coder"), "m1", "make the failing test pass", alice.Pack(dir))
		got := alice.Completed(turn)
		if b, err := os.ReadFile(filepath.Join(dir, "answer.txt")); err != nil || string(b) != "not yet" {
			t.Errorf("the person's folder changed before the patch was applied: %q %v", b, err)
		}
		patch := alice.Artifact(got.GetPatchDigest())
		if strings.Count(patch, "diff --git") != 1 {
			t.Errorf("the patch is\n%s", patch)
		}
		if err := workspace.Apply(t.Context(), dir, []byte(patch)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "answer.txt")); err != nil || string(b) != nonce {
			t.Errorf("after apply the file holds %q: %v", b, err)
		}
		w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 && a.Supervisors() == 0 }) // INV-18
	})
}

// repository makes a git folder with one commit.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir
}

package ssh

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newOnce is the script of README, for a user of its own.
func newOnce(t *testing.T) func(line string) int {
	t.Helper()
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```sh\n#!/bin/sh\n# once run KEY")
	script, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("README has no script once")
	}
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".once"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "once"), []byte("#!/bin/sh\n# once run KEY"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return func(line string) int {
		t.Helper()
		c := exec.Command("sh", "-c", line)
		c.Dir, c.Env = home, []string{"HOME=" + home, "PATH=" + home + ":" + os.Getenv("PATH")}
		var status *exec.ExitError
		if err := c.Run(); err != nil && !errors.As(err, &status) {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode()
	}
}

// INV-5: the look-up that README shows says that a call was done, or that it did not
// happen and cannot any more; a command that goes on after its connection was cut is
// neither, and one that comes late does not run.
func TestOnce(t *testing.T) {
	c := Command{
		Run: []string{"once", "run", "{idempotency_key}", "sh", "-c", `echo x >>"$1"; eval "$2"`, "sh", "{file}", "{then}"}, Inspect: []string{"once", "look", "{idempotency_key}"},
	}
	if p := c.Check(); len(p) > 0 {
		t.Fatal(p)
	}
	sh := newOnce(t)
	line := func(inspects bool, key, then string) string {
		t.Helper()
		l, err := c.line(inspects, []byte(`{"file":"ran-`+key+`","then":`+jsonOf(t, then)+`}`), key)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	look := func(what, key string, want int) {
		t.Helper()
		for range 2 { // a look changes nothing that was said
			if got := sh(line(true, key, ".")); got != want {
				t.Errorf("%s: the look-up says %d, not %d", what, got, want)
			}
		}
	}
	if got := sh(line(false, "a", ":")); got != 0 {
		t.Errorf("the first run: %d", got)
	}
	look("done", "a", 0)
	if got := sh(line(false, "a", ":")); got != 11 || sh(`test "$(cat ran-a)" = x`) != 0 {
		t.Errorf("the second run: %d", got)
	}
	look("not begun", "b", 10)
	if got := sh(line(false, "b", ":")); got != 11 || sh("test -e ran-b") != 1 {
		t.Errorf("a run that comes after the look-up: %d", got)
	}
	if got := sh(line(false, "c", "once look c; exit $?")); got != 11 {
		t.Errorf("while it runs the look-up says %d", got)
	}
	look("failed half way", "c", 11)
	if got := sh(line(false, "d", "exit 3")); got != 3 {
		t.Errorf("a command that fails: %d", got)
	}
	look("failed", "d", 11)
	sh("rm -r .once")
	look("without its directory", "e", 11)
	if got := sh(line(false, "e", ":")); got != 11 || sh("test -e ran-e") != 1 {
		t.Errorf("a run without its directory: %d", got)
	}
}

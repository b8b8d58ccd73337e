//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// A folder that cannot be carried is refused on the person's machine with the
// name and the reason: nothing is sent and no session is made. What the text says
// makes it fit.
func TestBadWorkspace(t *testing.T) {
	p := newBad(t)
	run := func(dir string) []string { return []string{"run", "--detach", "--workspace", dir, "run: ls"} }
	git := func(dir string, args ...string) {
		t.Helper()
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	nothingMade := func(t *testing.T) {
		t.Helper()
		if out := p.with(t).must("sessions"); strings.Contains(out, "ses_") {
			t.Errorf("a session was made:\n%s", out)
		}
	}
	t.Run("absent", func(t *testing.T) {
		p.with(t).refused(protocol.CodeInvalidArgument, []string{"the workspace cannot be opened: .*nowhere: no such file", "--workspace"}, run(filepath.Join(p.home, "nowhere"))...)
		nothingMade(t)
	})
	t.Run("no repository", func(t *testing.T) {
		p := p.with(t)
		dir := filepath.Join(p.home, "plain")
		p.write(filepath.Join(dir, "a.txt"), "a\n", 0o644)
		p.refused(protocol.CodeFailedPrecondition, []string{dir + " is not in a git repository", "`git init`", "--workspace"}, run(dir)...)
		nothingMade(t)
		git(dir, "init", "-q")
		p.must(run(dir)...)
	})
	for name, target := range map[string]string{"an absolute link": "/etc/passwd", "a link upwards": "../../secret"} {
		t.Run(name, func(t *testing.T) {
			p := p.with(t)
			dir := p.project(strings.ReplaceAll(name, " ", "-"), map[string]string{"a.txt": "a\n"})
			if err := os.Symlink(target, filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			p.refused(protocol.CodePolicyDenied, []string{`the link "out" points to "` + target + `", which is outside of the workspace`, "remove it, replace it by a copy, or add it to .gitignore"}, run(dir)...)
			p.write(filepath.Join(dir, ".gitignore"), "out\n", 0o644)
			p.must(run(dir)...)
		})
	}
	t.Run("a special file", func(t *testing.T) {
		p := p.with(t)
		dir := p.project("special", map[string]string{"a.txt": "a\n"})
		pipe := filepath.Join(dir, "b")
		if err := exec.Command("mkfifo", pipe).Run(); err != nil {
			t.Skip("mkfifo: ", err)
		}
		git(dir, "rev-parse", "HEAD")
		p.must(run(dir)...) // git does not list it, so it is not asked for
	})
	t.Run("no git", func(t *testing.T) {
		p := p.with(t)
		cmd := exec.Command(p.binary("bivouac"), append([]string{"--config", p.login}, run(p.project("good", map[string]string{"a.txt": "a\n"}))...)...)
		cmd.Env = []string{"PATH=/nowhere", "HOME=" + p.home}
		said, code := output(t, cmd)
		if code != protocol.CodeFailedPrecondition.ExitCode() {
			t.Errorf("exit code %d", code)
		}
		matches(t, said, "git", "install")
	})
}

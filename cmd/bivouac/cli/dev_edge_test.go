//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// stop ends it as Ctrl-C does.
func (d *devRun) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		d.t.Fatal(err)
	}
	if code := d.wait(); code != 0 {
		d.t.Fatalf("exit code %d after Ctrl-C\n%s", code, d.said())
	}
}

// kept is what a runner is known by: its enrolment, which names it, and its key.
func (d *devRun) kept() string { return d.enrolment() + d.ofEdge("device.key") }

func (d *devRun) enrolment() string { return d.ofEdge("enrolment.json") }

// ofEdge reads a file of the runner's state.
func (d *devRun) ofEdge(name string) string {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.dir, "state", "edge", name))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// nothingRan reports that no log was made: nothing was started.
func (d *devRun) nothingRan() bool {
	_, err := os.Stat(filepath.Join(d.dir, "state", "logs"))
	return errors.Is(err, fs.ErrNotExist)
}

// A mistake in edge.hcl is refused with its line before anything starts, and the runner
// stays what it is: the same start works without it, and after the repair.
func TestDevKeepsTheRunnerOfABadPolicy(t *testing.T) {
	d := newDev(t)
	d.start()
	before := d.kept()
	d.stop()
	file := filepath.Join(d.dir, "state", "edge", "edge.hcl")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(good, "foldr \"x\" {}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "state", "logs")); err != nil {
		t.Fatal(err)
	}
	_, said, code := d.cli(d.args()...)
	if code != protocol.CodeInvalidArgument.ExitCode() || !regexp.MustCompile(regexp.QuoteMeta(file)+`:\d+: .*foldr`).MatchString(said) || strings.Contains(said, "ended") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if !d.nothingRan() {
		t.Error("something was started")
	}
	d.start("--no-edge") // as the refusal says
	d.stop()
	if d.kept() != before {
		t.Error("the runner is another one after a mistake in its policy")
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if !strings.Contains(d.said(), "  runner   ") || strings.Contains(d.said(), "joins anew") || d.kept() != before {
		t.Errorf("after the repair it is not the runner that it was:\n%s", d.said())
	}
}

// A runner that ends for a reason of its own stays joined, and its log is shown; one
// that the server does not have any more joins anew, with its owner's file.
func TestDevJoinsAnewOnlyWhatTheServerForgot(t *testing.T) {
	d := newDev(t)
	d.start()
	before := d.kept()
	d.stop()
	state := filepath.Join(d.dir, "state")
	rootFile := filepath.Join(state, "edge", "root.crt") // without it the runner cannot run
	root, err := os.ReadFile(rootFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rootFile, []byte("damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if said := d.said(); !strings.Contains(said, "  runner   does not run; its log ends with:\n") || !strings.Contains(said, "root.crt") || d.kept() != before {
		t.Errorf("a runner that cannot run:\n%s", said)
	}
	d.stop()
	if err := os.WriteFile(rootFile, root, 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if d.kept() != before {
		t.Errorf("after the repair it is another runner:\n%s", d.said())
	}
	var machine struct {
		ID string `json:"runner_id"`
	}
	if err := json.Unmarshal([]byte(d.enrolment()), &machine); err != nil {
		t.Fatal(err)
	}
	d.must("edge", "revoke", machine.ID)
	d.until("the runner is fenced", func() bool { return strings.Contains(d.said(), "the next bivouac dev brings it back") })
	d.stop()
	d.start()
	if said := d.said(); !strings.Contains(said, "does not take the runner "+machine.ID) || d.kept() == before {
		t.Errorf("a runner that was revoked:\n%s", said)
	}
	before = d.kept()
	d.stop()

	mark := "# its owner wrote this\n"
	policy := filepath.Join(state, "edge", "edge.hcl")
	b, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policy, append(b, mark...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"server", "broker"} { // another deployment, with another root
		if err := os.RemoveAll(filepath.Join(state, part)); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	if said := d.said(); !strings.Contains(said, "does not take the runner") || !regexp.MustCompile(`(?m)^  runner   \S+, sandbox `).MatchString(said) || d.kept() == before {
		t.Errorf("a runner that the server does not know:\n%s", said)
	}
	if b, err := os.ReadFile(policy); err != nil || !strings.HasSuffix(string(b), mark) {
		t.Errorf("its owner's file did not stay (%v):\n%s", err, b)
	}
}

// A folder that cannot be allowed is refused before anything starts, with what mends
// it, and the same command works then.
func TestDevChecksFoldersFirst(t *testing.T) {
	d := newDev(t)
	folder := filepath.Join(d.dir, "later")
	for flag, want := range map[string]string{
		"notes":                    `--allow-folder "notes": write name=/path`,
		"notes=" + folder + ":rw":  "--allow-folder notes: ",
		"notes=" + folder + ":rwx": "it ends with :rwx",
		"notes=" + folder:          "mkdir -p " + folder,
		"Notes=" + d.dir + ":rw":   "lower-case letters",
		"state=" + filepath.Join(d.dir, "state", "edge"): "Bivouac's own directory",
	} {
		_, said, code := d.cli(d.args("--allow-folder", flag)...)
		if code != protocol.CodeInvalidArgument.ExitCode() || !strings.Contains(said, want) || strings.Contains(said, "ended") {
			t.Errorf("%s: exit code %d: %s", flag, code, said)
		}
	}
	if !d.nothingRan() {
		t.Error("something was started")
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	d.start("--allow-folder", "notes="+folder+":rw")
	before := d.kept()
	if out := d.must("chat", "which folders do you have?"); !strings.Contains(out, "notes") {
		t.Errorf("the folder is not allowed:\n%s", out)
	}
	d.stop()
	d.start("--allow-folder", "notes=/nope:rw") // which says nothing any more
	if !strings.Contains(d.said(), "note: --allow-folder is for the first start") || d.kept() != before {
		t.Errorf("a later start:\n%s", d.said())
	}
}

// What a start fails at is what it says, and not that the parts before it were ended.
func TestDevNamesWhatFailed(t *testing.T) {
	d := newDev(t)
	key := filepath.Join(d.dir, "state", "edge", "device.key")
	if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, said, code := d.cli(d.args()...)
	if code != protocol.CodeFailedPrecondition.ExitCode() || !strings.Contains(said, "bivouac: bivouac-edge join failed: ") || !strings.Contains(said, "device.key") ||
		strings.Contains(said, "nil") || strings.Contains(said, "server ended") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	d.start()
	if !regexp.MustCompile(`(?m)^  runner   \S+, sandbox `).MatchString(d.said()) {
		t.Errorf("after the repair:\n%s", d.said())
	}
}

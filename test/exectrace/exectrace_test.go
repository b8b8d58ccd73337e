//go:build linux

package exectrace

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// Every execution of the tree is seen, however short and however deep, with what
// it was given and nothing that it was not.
func TestEveryExecutionIsRecorded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exec.jsonl")
	cmd, err := Command(file, "/bin/sh", "-c", "/bin/true one; (exec env -i PLANTED=canary setsid /bin/true two); exit 7")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("exit code %d (%v), want the command's 7", cmd.ProcessState.ExitCode(), err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var argv []string
	planted := 0
	for line := range strings.Lines(string(b)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		argv = append(argv, strings.Join(r.Argv, " "))
		if slices.Contains(r.Env, "PLANTED=canary") {
			planted++
		}
	}
	for _, want := range []string{"/bin/true one", "/bin/true two"} {
		if !slices.Contains(argv, want) {
			t.Errorf("%q was executed and not recorded; recorded: %q", want, argv)
		}
	}
	if planted == 0 {
		t.Error("the planted environment was not recorded")
	}
}

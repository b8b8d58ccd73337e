//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/vaulttest"
)

func TestMain(m *testing.M) {
	code := vaulttest.Main(m)
	stack.RemoveBuilds()
	os.Exit(code)
}

// TestScripts runs testdata/*.txtar, which read as documentation, with the built
// binaries against one real deployment. Every script is a person of its own, the
// admin of a tenant of its own, logged in and with the agents of bivouac dev.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a whole deployment")
	}
	s := start(t)
	fakes := fakeVaults(t)
	testscript.Run(t, testscript.Params{
		Dir:                "testdata",
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			for name, url := range fakes {
				env.Setenv(name, url)
			}
			return person(t.Context(), s, env)
		},
		Condition: condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "until": until, "capture": capture, "documents": documents,
		},
	})
}

// start brings up server, broker and model; the scripts add machines.
func start(t *testing.T) *stack.Stack {
	t.Helper()
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	script := ""
	for _, name := range []string{"testdata/model.hcl", "defaults/model.hcl"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		script += string(b)
	}
	s, err := stack.Start(t.Context(), stack.Config{Bin: bin, Dir: t.TempDir(), Script: script,
		Destinations: []stack.Destination{{Name: "ledger", URL: brokenLedger(t)}, {Name: "vault", URL: vault(t), Closed: true}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the scripts run in parallel, after this function
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// brokenLedger takes every request and breaks the connection before it answers.
func brokenLedger(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// vault keeps everything, and no path leads to it.
func vault(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the vault has it\n") }))
	t.Cleanup(s.Close)
	return s.URL
}

// person gives a script its tenant, its login and its agents.
func person(ctx context.Context, s *stack.Stack, env *testscript.Env) error {
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	res, err := s.API.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "alice", Tenant: name, Admin: true})
	if err != nil {
		return err
	}
	token := filepath.Join(env.WorkDir, "token")
	if err := os.WriteFile(token, []byte(res.GetToken()+"\n"), 0o600); err != nil {
		return err
	}
	bin, err := stack.Build()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"PATH": bin + ":" + os.Getenv("PATH"), "HOME": filepath.Join(env.WorkDir, "home"), "BIVOUAC_CONFIG": filepath.Join(env.WorkDir, "login"),
		"SERVER": s.URL(), "OPERATOR": s.Path("secrets", "token"), "GIT_CONFIG_GLOBAL": "/dev/null",
	} {
		env.Setenv(name, value)
	}
	for _, args := range [][]string{
		{"login", s.URL(), "--token-file", token},
		{"credential", "set", "scripted-key", "--file", s.Path("secrets", "scripted-key")},
		{"agents", "apply", "defaults/assistant.hcl", "defaults/coder.hcl"},
		{"grant", "create", "--agent", "assistant"},
		{"grant", "create", "--agent", "coder"},
	} {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "bivouac"), args...)
		cmd.Env = env.Vars
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("bivouac %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// condition adds [sandbox]: code can be run in a sandbox on this machine.
func condition(name string) (bool, error) {
	if name != "sandbox" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	_, err := exec.LookPath("bwrap")
	return err == nil, nil
}

// exits CODE COMMAND…: the command ends with the exit code of an error code, or with
// that of a dry run that found something to do where CODE is "differs".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command…")
	}
	want, ok := protocol.Codes[protocol.Code(args[0])]
	if args[0] == "differs" {
		want.Exit = protocol.ExitDiffers
	} else if !ok {
		ts.Fatalf("%q is no error code", args[0])
	}
	err := ts.Exec(args[1], args[2:]...)
	var ended *exec.ExitError
	switch {
	case err == nil:
		ts.Fatalf("it succeeded; %s was expected", args[0])
	case !errors.As(err, &ended):
		ts.Fatalf("%v", err)
	case ended.ExitCode() != want.Exit:
		ts.Fatalf("exit code %d, want %d (%s)", ended.ExitCode(), want.Exit, args[0])
	}
}

// documents COMMAND…: runs the command with --json; what it prints is JSON, one
// document a line, and nothing else.
func documents(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: documents bivouac command…")
	}
	ts.Check(ts.Exec(args[0], append([]string{"--json"}, args[1:]...)...))
	out := ts.ReadFile("stdout")
	if !strings.HasSuffix(out, "\n") || ts.ReadFile("stderr") != "" {
		ts.Fatalf("more, or less, than documents was printed")
	}
	for line := range strings.Lines(out) {
		if !json.Valid([]byte(line)) || !strings.HasPrefix(line, "{") {
			ts.Fatalf("no JSON document: %s", line)
		}
	}
}

// until REGEXP COMMAND…: runs the command again until its output matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until regexp command…")
	}
	re := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && re.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after three minutes (%v) the output does not match %s", err, re)
		}
	}
}

// capture NAME REGEXP: sets a variable to the first group, or all, of what the last
// command printed.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture name regexp")
	}
	m := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("the output does not match %s", args[1])
	}
	ts.Setenv(args[0], m[len(m)-1])
}

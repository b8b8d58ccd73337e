//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// Bad input: what a person gets wrong, or their machine, or a provider. Each test
// asks for the stable code and the exit code, for a text that names what failed,
// why and what to do next, and then does what the text says.

const badAssistant = `
agent "assistant" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You help."
  model { route = "scripted" }
  device_tools = ["files.list", "files.read", "files.write"]
  limits { max_queued = 2 }
}
`

const badCoder = `
agent "coder" {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You run commands."
  model { route = "scripted" }
  sandbox_tools = ["shell"]
}
`

// badScript fails as providers do, calls tools as bad models do, and otherwise
// tells what came back.
var badScript = `
rule "think" {
  when { user_contains = "think" }
  text  = "Done."
  delay = "60s"
}
rule "too many" {
  when { user_contains = "fail with 429" }
  error {
    status      = 429
    retry_after = "1s"
    message     = "slow down"
  }
}
rule "trouble" {
  when { user_contains = "fail with 500" }
  error { status = 500 }
}
rule "garbage" {
  when { user_contains = "answer garbage" }
  garbage = true
}
rule "cut" {
  when { user_contains = "break off" }
  text      = "This will not be whole."
  cut_after = 1
}
rule "no JSON" {
  when {
    user_contains = "malformed arguments"
    results       = 0
  }
  call "files_read" { raw_arguments = "{\"path\": " }
}
rule "not the schema" {
  when {
    user_contains = "other arguments"
    results       = 0
  }
  call "files_read" { arguments = { file = "notes/todo.txt" } }
}
rule "too large" {
  when {
    user_contains = "large arguments"
    results       = 0
  }
  call "files_write" { arguments = { path = "notes/large.txt", content = "` + strings.Repeat("x", 70_000) + `" } }
}
rule "no such tool" {
  when {
    user_contains = "imagined tool"
    results       = 0
  }
  call "files_shred" { arguments = { path = "notes/todo.txt" } }
}
rule "read" {
  when {
    user_matches = "read (?P<path>\\S+)"
    results      = 0
    offers       = ["files_read"]
  }
  call "files_read" { arguments = { path = user.path } }
}
rule "write" {
  when {
    user_matches = "write (?P<path>\\S+)"
    results      = 0
    offers       = ["files_write"]
  }
  call "files_write" { arguments = { path = user.path, content = "written\n" } }
}
rule "run" {
  when {
    user_matches = "(?s)run: (?P<command>.+)"
    results      = 0
    offers       = ["shell"]
  }
  call "shell" { arguments = { command = user.command } }
}
rule "tell" {
  when { any_result_matches = "(?s)(?P<all>.+)" }
  text = "I got: ${any.all}"
}
rule "greet" {
  text = "Hello."
}
`

// newBad is a deployment whose model and agents are made for this, and its person.
func newBad(t *testing.T) *person {
	t.Helper()
	return first(t, newStack(t, stack.Config{Script: badScript, Agents: []string{badAssistant, badCoder}}))
}

// refused runs a command that must be refused: with the exit code of an error code,
// which --json names, and with a text in which each pattern is found. The error is
// all that it prints.
func (p *person) refused(code protocol.Code, says []string, args ...string) string {
	p.t.Helper()
	said := p.ran(code, "bivouac", append([]string{"--config", p.login}, args...)...)
	matches(p.t, said, says...)
	if !strings.HasPrefix(said, "bivouac: ") {
		p.t.Errorf("bivouac %v prints more than its error:\n%s", args, said)
	}
	var doc struct {
		Error struct{ Code, Message string }
	}
	asJSON := p.ran(code, "bivouac", append([]string{"--json", "--config", p.login}, args...)...)
	if err := json.Unmarshal([]byte(asJSON), &doc); err != nil || doc.Error.Code != string(code) || doc.Error.Message == "" {
		p.t.Errorf("bivouac --json %v: %v: %s", args, err, asJSON)
	}
	return said
}

// ran runs a binary that must end with the exit code of an error code, and returns
// what it printed.
func (p *person) ran(code protocol.Code, name string, args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience) // one that goes on was not refused
	defer cancel()
	_, err := p.Run(ctx, name, args...)
	if err == nil {
		p.t.Fatalf("%s %v succeeded; %s was expected", name, args, code)
	}
	_, said, _ := strings.Cut(err.Error(), "\n")
	if got := exitCode(err); got != code.ExitCode() {
		p.t.Errorf("%s %v: exit code %d, want %d (%s)\n%s", name, args, got, code.ExitCode(), code, said)
	}
	return said
}

func matches(t *testing.T, said string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(said) {
			t.Errorf("it does not say %q:\n%s", p, said)
		}
	}
}

// eventData is what the events of a kind say of a turn.
func (p *person) eventData(turn, kind string) (all []map[string]string) {
	p.t.Helper()
	res, err := p.api.Events.ListEvents(p.t.Context(), &apiv1.ListEventsRequest{TurnId: turn, Limit: 500})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range res.GetEvents() {
		if e.GetType() != kind {
			continue
		}
		data := map[string]string{}
		if err := json.Unmarshal([]byte(e.GetData()), &data); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, data)
	}
	return all
}

// binary of this deployment.
func (p *person) binary(name string) string {
	p.t.Helper()
	bin, err := stack.Build()
	if err != nil {
		p.t.Fatal(err)
	}
	return filepath.Join(bin, name)
}

// stranger is a user who owns nothing.
const stranger = 65534

// asStranger lets a command run as another user when the tests run as root, for
// whom permissions do not count.
func asStranger(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	}
}

// output runs a prepared command to its end.
func output(t *testing.T, cmd *exec.Cmd) (said string, code int) {
	t.Helper()
	b, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

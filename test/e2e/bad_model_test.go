//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// A provider that fails ends the turn with a stable reason and an exit code, and
// a text that names the route, what the provider did and what to do. Nothing is
// lost: the prompt is recorded, and the conversation goes on.
func TestBadProviderAnswers(t *testing.T) {
	me := newBad(t)
	for name, c := range map[string]struct {
		prompt string
		reason string
		code   protocol.Code
		says   []string
	}{
		"429":     {"fail with 429", "model_unavailable", protocol.CodeUnavailable, []string{"route scripted asks to slow down: slow down", "try again later"}},
		"500":     {"fail with 500", "model_unavailable", protocol.CodeUnavailable, []string{`route scripted has a fault \(status 500\)`, "try again later"}},
		"garbage": {"answer garbage", "model_answer", protocol.CodeDataLoss, []string{"route scripted does not speak chat completions", "check base_url and format in broker.hcl"}},
		"cut":     {"break off", "model_unavailable", protocol.CodeUnavailable, []string{"route scripted: stream broke off", "try again later"}},
	} {
		p := newPerson(t, me.Stack, "", strings.ReplaceAll(name, " ", "-"), false)
		p.must("grant", "create", "--agent", "assistant")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.with(t).failsAndGoesOn(c.prompt, c.reason, c.code, c.says)
		})
	}
	t.Run("401", func(t *testing.T) {
		t.Parallel()
		wrong := me.Path("secrets", "wrong-key")
		me.write(wrong, "a-key-that-is-not-the-one\n", 0o600)
		p := newPerson(t, me.Stack, "elsewhere", "401", true)
		agent := filepath.Join(p.home, "assistant.hcl")
		p.write(agent, badAssistant, 0o644)
		p.must("agents", "apply", agent)
		p.must("grant", "create", "--agent", "assistant")
		p.must("credential", "set", "scripted-key", "--file", wrong)
		_, err := p.cli("chat", "hello")
		if got := exitCode(err); got != protocol.CodeFailedPrecondition.ExitCode() {
			t.Errorf("exit code %d", got)
		}
		matches(t, err.Error(), `FAILED \(model_auth\): .*route scripted refuses its key \(status 401\)`, "store a good one with: bivouac credential set scripted-key")
		if strings.Contains(err.Error(), "a-key-that") {
			t.Error("the key is in the error")
		}
		p.must("credential", "set", "scripted-key", "--file", me.Path("secrets", "scripted-key"))
		if out := p.must("chat", "hello"); out != "Hello.\n" {
			t.Errorf("with the good key: %s", out)
		}
	})
}

func (p *person) failsAndGoesOn(prompt, reason string, code protocol.Code, says []string) {
	p.t.Helper()
	_, err := p.cli("chat", "--new", prompt)
	if got := exitCode(err); got != code.ExitCode() {
		p.t.Errorf("exit code %d, want %d (%s)", got, code.ExitCode(), code)
	}
	if err == nil {
		p.t.Fatal("it succeeded")
	}
	matches(p.t, err.Error(), append(says, `trn_[0-9a-z]{26}  FAILED \(`+reason+`\): `)...)
	var list struct{ Turns []turnLine }
	p.decoded(&list, "turns", "--limit", "1")
	turn := list.Turns[0]
	if turn.State != "FAILED" || turn.Reason != reason || turn.Prompt != prompt || turn.Message == "" {
		p.t.Errorf("the record: %+v", turn)
	}
	if out := p.must("chat", "hello"); out != "Hello.\n" {
		p.t.Errorf("the next turn: %s", out)
	}
	p.decoded(&list, "turns", "--limit", "1")
	if list.Turns[0].SessionID != turn.SessionID {
		p.t.Error("the next turn was in another session")
	}
}

type turnLine struct {
	ID, State, Reason, Message, Prompt, Answer string
	SessionID                                  string `json:"session_id"`
}

// A model that calls a tool badly is told so, by a result that it can read, and
// nothing is done; the turn goes on.
func TestBadToolArguments(t *testing.T) {
	p := newBad(t)
	notes := filepath.Join(p.home, "notes")
	p.write(filepath.Join(notes, "todo.txt"), "buy bread\n", 0o644)
	p.addEdge(stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + notes + ":rw"}})
	matches(t, p.must("chat", "read notes/todo.txt"), "I got: .*buy bread")
	for name, c := range map[string]struct {
		prompt string
		says   []string
	}{
		"malformed": {"malformed arguments", []string{"I got: ", "JSON"}},
		"schema":    {"other arguments", []string{"I got: ", "file|path"}},
		"too large": {"large arguments", []string{"I got: ", "at most 65536 are allowed", "Send less"}},
		"no tool":   {"imagined tool", []string{"I got: ", "files_shred", "files_read"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := p.with(t)
			turn := p.completed(p.submit("chat", c.prompt, "--new").ID)
			matches(t, turn.GetAnswer(), c.says...)
			if len(turn.GetActions()) > 0 {
				t.Errorf("it acted: %v", turn.GetActions())
			}
			data := p.eventData(turn.GetId(), "tool.finished")
			if len(data) != 1 || data[0]["code"] != string(protocol.CodeInvalidArgument) && data[0]["code"] != string(protocol.CodeNotFound) || data[0]["status"] == "ok" {
				t.Errorf("the record: %v", data)
			}
		})
	}
	if names, err := os.ReadDir(notes); err != nil || len(names) != 1 {
		t.Errorf("the folder changed: %v, %v", names, err)
	}
}

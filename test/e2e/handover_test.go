//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac/server/api/apiv1"
	"bivouac/server/broker/scripted"
	"bivouac/test/e2e/stack"
)

// The profile of these tests: what is lost is found within seconds.
const handoverAgent = `
agent "coder" {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You change files."
  model { route = "scripted" }
  sandbox_tools = ["read", "write", "list", "search", "shell"]
  lease {
    authority_ttl = "4s"
    retention     = "8s"
  }
}
`

// The second turn's rules can only be met with the files of the first one, and
// the slow answer of the third turn gives the time to lose its machine: ten seconds.
const handoverScript = `
rule "write" {
  when {
    user_contains = "first task"
    results       = 0
  }
  call "write_file" { arguments = { path = "made.txt", content = "made by the first turn\n" } }
}
rule "written" {
  when {
    user_contains = "first task"
    result_of     = "write_file"
  }
  text = "ANSWER-ONE: made.txt is there."
}
rule "read" {
  when {
    user_contains = "second task"
    results       = 0
  }
  call "read_file" { arguments = { path = "made.txt" } }
}
rule "go on" {
  when {
    user_contains   = "second task"
    result_of       = "read_file"
    result_contains = "made by the first turn"
  }
  call "shell" { arguments = { command = "cat made.txt > copy.txt && echo and the second >> made.txt" } }
}
rule "gone on" {
  when {
    user_contains = "second task"
    result_of     = "shell"
  }
  text = "ANSWER-TWO: it was there."
}
rule "append" {
  when {
    user_contains = "third task"
    results       = 0
  }
  call "shell" { arguments = { command = "echo once >> log.txt" } }
}
rule "think long" {
  when {
    user_contains = "third task"
    result_of     = "shell"
  }
  chunk_delay = "100ms"
  chunk_runes = 1
  text        = "thinking about it for a while, and then for a while more, until somebody could have lost a whole machine"
  call "shell" { arguments = { command = "echo twice >> log.txt" } }
}
`

// handoverEnd is the last rule of the third task: after both commands.
const handoverEnd = `
rule "thought" {
  when {
    user_contains = "third task"
    results       = 2
  }
  text = "ANSWER-THREE: both lines are there."
}
`

// Machines go for good, and a session outlives each of them.
func TestHandover(t *testing.T) {
	s := newStack(t, stack.Config{Script: handoverEnd + handoverScript, Agents: []string{handoverAgent}})
	me := first(t, s)
	dir := me.project("project", map[string]string{"README": "a project\n"})
	a := me.addEdge(stack.EdgeConfig{Name: "a"})
	one := me.completed(me.submit("run", "first task", "--agent", "coder", "--workspace", dir).ID)
	wantAttempts(t, one, "SUCCEEDED on a")
	session := []string{"--session", one.GetSessionId()}

	// A is stopped for good between two turns: the next one runs on B, which sees
	// conversation and accepted patch.
	if err := errors.Join(a.Daemon.Kill(), os.RemoveAll(a.State)); err != nil {
		t.Fatal(err)
	}
	b := me.addEdge(stack.EdgeConfig{Name: "b"})
	two := me.completed(me.submit("run", "second task", session...).ID)
	wantAttempts(t, two, "SUCCEEDED on b")
	if said := conversation(t, lastReceived(s).Body); !strings.Contains(said, "user: first task") ||
		!strings.Contains(said, "assistant: ANSWER-ONE") || !strings.Contains(said, "user: second task") {
		t.Errorf("the second turn was told:\n%s", said)
	}

	// B dies in the middle of a turn: that is a known outcome, and one new attempt
	// goes on from the checkpoint on C. What was done is not done again.
	id := me.submit("run", "third task", session...).ID
	await(t, "the slow answer after a checkpoint", func() error { return errors.Join(answering(s, "think long"), me.hasEvent(id, "turn.checkpoint")) })
	killMachine(t, b)
	me.addEdge(stack.EdgeConfig{Name: "c"})
	three := me.completed(id)
	wantAttempts(t, three, "INTERRUPTED on b", "SUCCEEDED on c")
	if !strings.HasPrefix(three.GetAnswer(), "ANSWER-THREE") {
		t.Errorf("answer %q", three.GetAnswer())
	}
	if asked := len(receivedBy(s, "append")); asked != 1 {
		t.Errorf("the model was asked for the first command %d times", asked)
	}

	// The three patches apply to the folder, one on the other.
	for _, turn := range []*apiv1.Turn{one, two, three} {
		me.must("apply", turn.GetId(), "--workspace", dir)
	}
	wantFile(t, filepath.Join(dir, "made.txt"), "made by the first turn\nand the second\n")
	wantFile(t, filepath.Join(dir, "copy.txt"), "made by the first turn\n")
	wantFile(t, filepath.Join(dir, "log.txt"), "once\ntwice\n")
}

func wantAttempts(t *testing.T, turn *apiv1.Turn, want ...string) {
	t.Helper()
	var got []string
	for _, a := range turn.GetAttempts() {
		got = append(got, a.GetState()+" on "+a.GetRunnerName())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the attempts of turn %s: %q, want %q", turn.GetId(), got, want)
	}
}

// receivedBy are the requests that a rule answered.
func receivedBy(s *stack.Stack, rule string) (out []scripted.Received) {
	for _, r := range s.Received() {
		if r.Rule == rule {
			out = append(out, r)
		}
	}
	return out
}

func lastReceived(s *stack.Stack) scripted.Received {
	all := s.Received()
	return all[len(all)-1]
}

func wantFile(t *testing.T, name, want string) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("%s holds %q (%v), want %q", name, got, err, want)
	}
}

// conversation is a request to the model, one "role: text" a line.
func conversation(t *testing.T, body json.RawMessage) string {
	t.Helper()
	var req struct {
		Messages []struct {
			Role    string
			Content *string
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, m := range req.Messages {
		if m.Content != nil {
			b.WriteString(m.Role + ": " + *m.Content + "\n")
		}
	}
	return b.String()
}

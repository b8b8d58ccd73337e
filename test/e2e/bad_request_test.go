//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func TestBadUnknownAgent(t *testing.T) {
	p := newBad(t)
	says := []string{`agent "clerk" not found`, "`bivouac agents list`", "`bivouac agents apply FILE`"}
	p.refused(protocol.CodeNotFound, says, "chat", "--agent", "clerk", "hello")
	p.refused(protocol.CodeNotFound, says, "run", "--agent", "clerk", "--workspace", p.project("work", map[string]string{"a.txt": "a\n"}), "hello")
	p.refused(protocol.CodeNotFound, says, "grant", "create", "--agent", "clerk")
	if out := p.must("sessions"); strings.Contains(out, "ses_") {
		t.Errorf("a session was made:\n%s", out)
	}
	// What the text says: look at the list, or add it.
	if out := p.must("agents", "list"); !strings.Contains(out, "assistant") {
		t.Errorf("the list:\n%s", out)
	}
	file := filepath.Join(p.home, "clerk.hcl")
	p.write(file, strings.Replace(badAssistant, `"assistant"`, `"clerk"`, 1), 0o644)
	p.must("agents", "apply", file)
	p.must("grant", "create", "--agent", "clerk")
	if out := p.must("chat", "--agent", "clerk", "hello"); out != "Hello.\n" {
		t.Errorf("the new agent: %s", out)
	}
}

// A message id that was used is the turn that it made; with another body it is a
// conflict that names that turn, and nothing is queued.
func TestBadDuplicateMessage(t *testing.T) {
	p := newBad(t)
	sent := p.submit("chat", "hello", "--message-id", "m-1")
	p.completed(sent.ID)
	if again := p.submit("chat", "hello", "--message-id", "m-1"); again != sent {
		t.Errorf("the same message made %v, then %v", sent, again)
	}
	p.refused(protocol.CodeConflict, []string{`message "m-1" was sent before with another prompt or workspace`, sent.ID, "use a new message id"},
		"chat", "--message-id", "m-1", "something else")
	if first := p.turn(sent.ID); first.GetPrompt() != "hello" || first.GetState() != "COMPLETED" {
		t.Errorf("the first turn changed: %v", first)
	}
	other := p.submit("chat", "something else", "--message-id", "m-2")
	if p.completed(other.ID); other.Session != sent.Session {
		t.Error("the remedy lost the conversation")
	}
	var list struct{ Turns []turnLine }
	p.decoded(&list, "turns")
	if len(list.Turns) != 2 {
		t.Errorf("%d turns: %+v", len(list.Turns), list.Turns)
	}
}

// A full queue refuses with the time after which to try again. What was taken in
// before is kept and runs, and the remedy, a cancelled turn, makes room.
func TestBadFullQueue(t *testing.T) {
	p := newBad(t)
	active := p.submit("chat", "think")
	await(t, "the first turn is active", func() error {
		if s := p.turn(active.ID).GetState(); s != "RUNNING_MODEL" {
			return fmt.Errorf("it is %s", s)
		}
		return nil
	})
	waiting := []string{p.submit("chat", "hello 1").ID, p.submit("chat", "hello 2").ID}
	p.refused(protocol.CodeQueueFull, []string{"2 turns wait for this session, which is the limit", "try again later", "`bivouac turns`", "`bivouac cancel`"}, "chat", "hello 3")

	var doc struct {
		Error struct {
			Code       string
			RetryAfter string `json:"retry_after"`
		}
	}
	said := p.ran(protocol.CodeQueueFull, "bivouac", "--json", "--config", p.login, "chat", "hello 3")
	if err := json.Unmarshal([]byte(said), &doc); err != nil || doc.Error.Code != "queue_full" {
		t.Fatalf("%v: %s", err, said)
	}
	if d, err := time.ParseDuration(doc.Error.RetryAfter); err != nil || d <= 0 {
		t.Errorf("retry_after: %s", said)
	}
	if a := p.post("TurnService/SubmitTurn", fmt.Sprintf(`{"session_id":%q,"message_id":"m","prompt":"hello 3"}`, active.Session)); a.status != 429 || !strings.Contains(a.body, "resource_exhausted") {
		t.Errorf("over HTTP: %+v", a)
	}
	p.must("cancel", waiting[0])
	late := p.submit("chat", "hello 3").ID
	p.must("cancel", active.ID)
	for _, id := range []string{waiting[1], late} {
		if turn := p.completed(id); turn.GetAnswer() != "Hello." {
			t.Errorf("%v", turn)
		}
	}
	for _, id := range []string{active.ID, waiting[0]} {
		if turn := p.ended(id); turn.GetState() != "CANCELLED" {
			t.Errorf("%v", turn)
		}
	}
}

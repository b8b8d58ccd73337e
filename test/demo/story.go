//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// event is what the story needs of one.
type event struct {
	Type    string
	Payload string
	data    map[string]string
}

// tell prints the newest turn as a short story: what happened, in order, and
// where. All events go into a file, for those who want to see everything.
func (d *demo) tell(ctx context.Context) error {
	turn, err := d.newestTurn(ctx)
	if err != nil {
		return err
	}
	out, err := d.cli(ctx, d.home, "--json", "events", turn.SessionID)
	if err != nil {
		return err
	}
	d.events.WriteString(out)
	s := story{tools: map[string]string{}}
	for line := range strings.Lines(out) {
		var e struct{ Type, Data, Payload string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return err
		}
		if d.all {
			say("%-20s %s", e.Type, short(e.Data, 150))
		}
		one := event{Type: e.Type, Payload: e.Payload}
		if err := json.Unmarshal([]byte(e.Data), &one.data); err != nil {
			return err
		}
		s.add(one)
	}
	s.flush()
	fmt.Println()
	for _, line := range s.lines {
		say("%-10s %s", line[0], line[1])
	}
	file := filepath.Join(d.dir, "events.jsonl")
	say("all %d events of it are in %s", strings.Count(out, "\n"), file)
	return os.WriteFile(file, d.events.Bytes(), 0o600)
}

// story gathers lines of where and what.
type story struct {
	lines   [][2]string
	sandbox bool              // the turn works in one
	asked   int               // model calls in a row
	tools   map[string]string // by call
}

func (s *story) say(where, format string, args ...any) {
	s.flush()
	s.lines = append(s.lines, [2]string{where, fmt.Sprintf(format, args...)})
}

// flush tells model calls in a row as one line.
func (s *story) flush() {
	if s.asked == 0 {
		return
	}
	n := s.asked
	s.asked = 0
	s.say("broker", "asks the model%s; it alone adds the key", times(n))
}

// deviceWords say what an action is for, where its name does not.
var deviceWords = map[string]string{"files.digest": "files.digest: the approval binds the file as it is now"}

func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", %d times", n)
}

func (s *story) add(e event) {
	tool := cmp.Or(e.data["tool"], s.tools[e.data["call_id"]], e.data["alias"])
	if e.data["call_id"] != "" && tool != "files.digest" {
		s.tools[e.data["call_id"]] = tool
	}
	switch e.Type {
	case "turn.queued":
		s.say("server", "queues the turn, durably: %q", short(e.Payload, 60))
	case "model.called":
		s.asked++
	case "attempt.started":
		if e.data["boundary"] != "" {
			s.sandbox = true
			s.say("laptop", "starts the turn in a sandbox (%s, limits by %s) without secrets or a network", e.data["boundary"], e.data["limits"])
		}
	case "tool.requested":
		if s.sandbox {
			s.say("sandbox", "%s %s", strings.TrimPrefix(tool, "sandbox."), short(e.Payload, 90))
		}
	case "tool.dispatched":
		if strings.HasPrefix(e.data["destination"], "run_") {
			s.say("laptop", "%s", cmp.Or(deviceWords[tool], tool))
		} else if !s.sandbox {
			s.say("broker", "calls %s for %s; it alone adds the credential", e.data["destination"], tool)
		}
	case "approval.requested":
		s.say("server", "waits for a person: %s", tool)
	case "approval.decided":
		s.say("you", "say %s", strings.ToLower(e.data["state"]))
	case "turn.ended":
		s.say("server", "the turn is %s", strings.ToLower(e.data["state"]))
	}
}

func short(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

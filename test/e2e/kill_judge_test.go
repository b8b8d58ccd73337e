//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// ended is how a turn ended, as the server says it.
type ended struct {
	State, Reason string
	Open          []string // actions that are not terminal
	// Unknown are effects outside of the machine whose outcome is not known. One
	// below that is told to the model as unknown, and the turn goes on.
	Unknown []string
}

// sighting is what one cell of the matrix saw: the outside world's word beside
// the server's.
type sighting struct {
	cell     string
	label    string // reached, by the process that was killed
	pid      int
	killed   string         // name of its program
	effects  map[string]int // what the outside world saw, and how often
	accepted []string       // what the server says has happened
	unknown  []string       // what the unknown inbox lists
	first    ended
	next     ended          // the turn that was queued behind it
	repeated map[string]int // effects after an unknown call was asked for again; nil: none was
	claims   map[string]int // supervisors that hold a claim, by attempt
	took     time.Duration
}

// line is the cell's line of the table.
func (s sighting) line() string {
	state := s.first.State
	if s.first.Reason != "" {
		state += "{" + s.first.Reason + "}"
	}
	return fmt.Sprintf("%-42s killed=%s/%d effects=%s accepted=%s unknown=%s turn=%s next=%s in %.1fs",
		s.cell, s.killed, s.pid, list(times(s.effects)), list(s.accepted), list(s.unknown), state, s.next.State, s.took.Seconds())
}

func times(effects map[string]int) (out []string) {
	for _, id := range slices.Sorted(maps.Keys(effects)) {
		if n := effects[id]; n > 1 {
			id += fmt.Sprintf("×%d", n)
		}
		out = append(out, id)
	}
	return out
}

// list shows ids without the tag, which the cell's name tells already.
func list(ids []string) string {
	var short []string
	for _, id := range ids {
		_, name, _ := strings.Cut(id, "-")
		short = append(short, name)
	}
	return "[" + strings.Join(short, " ") + "]"
}

// violations of what holds whatever is killed, whenever. INV-3, INV-4, INV-5, INV-14.
func (s sighting) violations() (bad []string) {
	wrong := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	for id, n := range s.effects {
		if n > 1 {
			wrong("%s happened %d times", id, n)
		}
		if !slices.Contains(s.accepted, id) && !slices.Contains(s.unknown, id) {
			wrong("%s happened, and the server neither says so nor lists it as unknown", id)
		}
	}
	for i, id := range s.accepted {
		if s.effects[id] == 0 {
			wrong("%s did not happen, and the server says that it did", id)
		}
		if slices.Contains(s.accepted[:i], id) {
			wrong("%s is accepted twice", id)
		}
		if slices.Contains(s.unknown, id) {
			wrong("%s is accepted and unknown", id)
		}
	}
	if s.repeated != nil && !maps.Equal(s.repeated, s.effects) {
		wrong("an unknown call was done again: %v, before %v", s.repeated, s.effects)
	}
	for attempt, n := range s.claims {
		if n > 1 {
			wrong("%d supervisors passed the claim of %s", n, attempt)
		}
	}
	bad = append(bad, s.first.violations("the turn")...)
	if bad = append(bad, s.next.violations("the next turn")...); s.next.State != "COMPLETED" {
		wrong("the next turn is %s{%s}", s.next.State, s.next.Reason)
	}
	return bad
}

// violations of a turn's end: it says what is known.
func (e ended) violations(what string) (bad []string) {
	if len(e.Open) > 0 {
		bad = append(bad, fmt.Sprintf("%s left actions open: %v", what, e.Open))
	}
	switch {
	case e.State == "COMPLETED" && len(e.Unknown) > 0:
		bad = append(bad, fmt.Sprintf("%s is COMPLETED over unknown outcomes: %v", what, e.Unknown))
	case e.State == "UNKNOWN" && len(e.Unknown) == 0:
		bad = append(bad, what+" is UNKNOWN and nothing of it is unknown")
	case e.State == "FAILED" && e.Reason == "":
		bad = append(bad, what+" FAILED without a reason")
	case e.State != "COMPLETED" && e.State != "FAILED" && e.State != "UNKNOWN":
		bad = append(bad, what+" has not ended: "+e.State)
	}
	return bad
}

// The judge itself is judged: each doctored sighting breaks one rule and is found,
// and the honest ones are not.
func TestJudgeOfTheMatrix(t *testing.T) {
	completed, unknown := ended{State: "COMPLETED"}, ended{State: "UNKNOWN", Reason: "outcome_unknown", Unknown: []string{"a-post"}}
	for name, c := range map[string]struct {
		s     sighting
		wants string // part of a violation; empty: none
	}{
		"known":               {sighting{effects: map[string]int{"a-post": 1}, accepted: []string{"a-post"}, first: completed, next: completed}, ""},
		"nothing happened":    {sighting{first: ended{State: "FAILED", Reason: "interrupted"}, next: completed}, ""},
		"unknown, happened":   {sighting{effects: map[string]int{"a-post": 1}, unknown: []string{"a-post"}, first: unknown, next: completed}, ""},
		"unknown, did not":    {sighting{unknown: []string{"a-post"}, first: unknown, next: completed, claims: map[string]int{"att_1": 1}}, ""},
		"twice":               {sighting{effects: map[string]int{"a-post": 2}, accepted: []string{"a-post"}, first: completed, next: completed}, "happened 2 times"},
		"forgotten":           {sighting{effects: map[string]int{"a-post": 1}, first: completed, next: completed}, "neither says so"},
		"invented":            {sighting{accepted: []string{"a-post"}, first: completed, next: completed}, "did not happen"},
		"accepted twice":      {sighting{effects: map[string]int{"a-post": 1}, accepted: []string{"a-post", "a-post"}, first: completed, next: completed}, "accepted twice"},
		"both":                {sighting{effects: map[string]int{"a-post": 1}, accepted: []string{"a-post"}, unknown: []string{"a-post"}, first: unknown, next: completed}, "accepted and unknown"},
		"repeated":            {sighting{unknown: []string{"a-post"}, repeated: map[string]int{"a-post": 1}, first: unknown, next: completed}, "done again"},
		"two supervisors":     {sighting{claims: map[string]int{"att_1": 2}, first: completed, next: completed}, "2 supervisors passed"},
		"open action":         {sighting{first: ended{State: "COMPLETED", Open: []string{"act_1"}}, next: completed}, "left actions open"},
		"called completed":    {sighting{unknown: []string{"a-post"}, first: ended{State: "COMPLETED", Unknown: []string{"a-post"}}, next: completed}, "COMPLETED over unknown"},
		"unknown of nothing":  {sighting{first: ended{State: "UNKNOWN"}, next: completed}, "nothing of it is unknown"},
		"no reason":           {sighting{first: ended{State: "FAILED"}, next: completed}, "without a reason"},
		"never ended":         {sighting{first: ended{State: "WAITING_ACTION"}, next: completed}, "has not ended"},
		"the queue stands":    {sighting{first: completed, next: ended{State: "QUEUED"}}, "the next turn is QUEUED"},
		"the next one failed": {sighting{first: completed, next: ended{State: "FAILED", Reason: "x"}}, "the next turn is FAILED"},
	} {
		found := strings.Join(c.s.violations(), "; ")
		if c.wants == "" && found != "" || !strings.Contains(found, c.wants) {
			t.Errorf("%s: wants %q, found %q", name, c.wants, found)
		}
	}
}

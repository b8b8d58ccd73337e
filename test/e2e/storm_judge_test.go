//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// stormRecord is what a storm left: the people's word, the server's, and the
// outside world's, each by itself.
type stormRecord struct {
	sent     []sent
	turns    []stormTurn
	sessions []stormSession
	effects  map[string]int // what the outside world saw, and how often
	inbox    []string       // ids of the actions that people are asked about
	debt     []string       // what has ended and is not cleaned up
	left     []string       // processes, control groups, mounts and staged files
	damaged  []string       // effects that are not what was asked for
	fell     []string       // processes that ended and were not killed
}

// sent is one message, with the turn of each answer that its sender got.
type sent struct {
	message string
	turns   []string
}

type stormTurn struct {
	id, session   string
	state, reason string
	message       string // what its person is told of the end
	actions       []stormAction
	attempts      []string       // ids
	open          []string       // actions and attempts that are not terminal
	said          []string       // effects that its transcript reports, beside its actions
	lines         map[string]int // lines of its patch, by the effect
}

// stormAction has an effect if it can have one.
type stormAction struct {
	id, tool, state, effect string
	reason                  string
}

// stormSession is a session's record, and what its readers were shown of it.
type stormSession struct {
	id      string
	events  map[int64]string // hash by sequence
	shown   map[int64]string // by a stream, through every break
	twice   int              // events that a stream showed again
	refused string           // why a stream ended that should have gone on
	counted int64            // by the server, when it proved the record
	broken  string           // why the record does not prove
}

// violations of what holds whatever is killed, whenever, under whatever load.
// INV-3, INV-4, INV-5, INV-8, INV-14, INV-15, INV-18.
func (r stormRecord) violations() (bad []string) {
	bad = append(bad, r.wrongIDs()...)
	bad = append(bad, r.wrongEffects()...)
	for _, t := range r.turns {
		bad = append(bad, t.violations()...)
	}
	for _, s := range r.sessions {
		bad = append(bad, s.violations()...)
	}
	for what, list := range map[string][]string{"not cleaned up": r.debt, "left over": r.left, "damaged": r.damaged, "ended by itself": r.fell} {
		for _, one := range list {
			bad = append(bad, what+": "+one)
		}
	}
	slices.Sort(bad)
	return bad
}

// wrongIDs are names that two things have, and messages that are two turns, or none.
func (r stormRecord) wrongIDs() (bad []string) {
	owner, turns := map[string]string{}, map[string]bool{}
	own := func(id, who string) {
		if id == "" {
			bad = append(bad, who+" has something without an id")
		} else if first := owner[id]; first != "" {
			bad = append(bad, fmt.Sprintf("%s is the id of two things: of %s and of %s", id, first, who))
		}
		owner[id] = who
	}
	for _, t := range r.turns {
		own(t.id, "a turn of "+t.session)
		turns[t.id] = true
		for _, a := range t.actions {
			own(a.id, "an action of "+t.id)
		}
		for _, a := range t.attempts {
			own(a, "an attempt of "+t.id)
		}
	}
	for _, s := range r.sessions {
		own(s.id, "a session")
	}
	messages := map[string]string{}
	for _, s := range r.sent {
		for _, turn := range s.turns {
			if first := messages[turn]; first != "" && first != s.message {
				bad = append(bad, fmt.Sprintf("turn %s is of two messages, %s and %s", turn, first, s.message))
			}
			messages[turn] = s.message
			if turn != s.turns[0] {
				bad = append(bad, fmt.Sprintf("message %s is two turns, %s and %s", s.message, s.turns[0], turn))
			}
			if !turns[turn] {
				bad = append(bad, fmt.Sprintf("turn %s of message %s was admitted and is lost", turn, s.message))
			}
		}
	}
	return bad
}

// wrongEffects hold accepted ⊆ effects ⊆ accepted ∪ unknown, and nothing twice.
func (r stormRecord) wrongEffects() (bad []string) {
	accepted, unknown := map[string]int{}, map[string]int{}
	happened := maps.Clone(r.effects)
	if happened == nil {
		happened = map[string]int{}
	}
	for _, t := range r.turns {
		for _, id := range t.said {
			accepted[id]++
		}
		for id, n := range t.lines {
			happened[id] += n
		}
		for _, a := range t.actions {
			if asked := slices.Contains(r.inbox, a.id); a.effect != "" && asked != (a.state == "UNKNOWN") {
				bad = append(bad, fmt.Sprintf("action %s (%s) is %s; people are asked about it: %t", a.id, a.effect, a.state, asked))
			}
			switch {
			case a.effect == "":
			case a.state == "SUCCEEDED":
				accepted[a.effect]++
			case a.state == "UNKNOWN":
				unknown[a.effect]++
			}
		}
	}
	for id, n := range happened {
		if n > 1 {
			bad = append(bad, fmt.Sprintf("%s happened %d times", id, n))
		}
		if accepted[id]+unknown[id] == 0 {
			bad = append(bad, fmt.Sprintf("%s happened, and the server neither says so nor lists it as unknown", id))
		}
	}
	for id, n := range accepted {
		if happened[id] == 0 {
			bad = append(bad, fmt.Sprintf("%s did not happen, and the server says that it did", id))
		}
		if n+unknown[id] > 1 {
			bad = append(bad, fmt.Sprintf("%s is accepted %d times and unknown %d times", id, n, unknown[id]))
		}
	}
	return bad
}

func (t stormTurn) violations() (bad []string) {
	wrong := func(format string, args ...any) {
		bad = append(bad, fmt.Sprintf("turn %s: ", t.id)+fmt.Sprintf(format, args...))
	}
	if !over(t.state) {
		wrong("it has not ended: %s", t.state)
	}
	if len(t.open) > 0 {
		wrong("it left open %v", t.open)
	}
	if t.state == "FAILED" && t.reason == "" {
		wrong("it FAILED without a reason")
	}
	return bad
}

func (s stormSession) violations() (bad []string) {
	wrong := func(format string, args ...any) {
		bad = append(bad, fmt.Sprintf("session %s: ", s.id)+fmt.Sprintf(format, args...))
	}
	for seq := int64(1); seq <= int64(len(s.events)); seq++ {
		if s.events[seq] == "" {
			wrong("event %d is missing of %d", seq, len(s.events))
		}
	}
	if s.broken != "" {
		wrong("its record does not prove: %s", s.broken)
	} else if s.counted != int64(len(s.events)) {
		wrong("%d events are listed, %d proven", len(s.events), s.counted)
	}
	for seq, hash := range s.shown {
		if s.events[seq] != hash {
			wrong("event %d was shown, and the record holds another one or none", seq)
		}
	}
	if s.refused != "" {
		wrong("%s", s.refused)
	}
	if s.twice > 0 {
		wrong("%d events were shown twice", s.twice)
	}
	return bad
}

// The judge itself is judged: an honest record passes, and each doctored one breaks
// one rule and is found by it.
func TestJudgeOfTheStorm(t *testing.T) {
	honest := func() *stormRecord {
		return &stormRecord{
			sent: []sent{{"m1", []string{"trn_1", "trn_1"}}, {"m2", []string{"trn_2"}}, {"m3", nil}},
			turns: []stormTurn{
				{id: "trn_1", session: "ses_1", state: "COMPLETED", attempts: []string{"att_1"}, actions: []stormAction{
					{"act_1", "http:post", "SUCCEEDED", "a-post", ""}, {"act_2", "files.read", "SUCCEEDED", "", ""}, {"act_3", "files.write", "SUPERSEDED", "a-file", ""}, {"act_4", "files.write", "SUCCEEDED", "a-file", ""}}},
				{id: "trn_2", session: "ses_1", state: "UNKNOWN", reason: "outcome_unknown", actions: []stormAction{
					{"act_5", "http:post", "UNKNOWN", "b-post", ""}, {"act_6", "http:put", "UNKNOWN", "b-put", ""}}},
				{id: "trn_3", session: "ses_1", state: "CANCELLED", said: []string{"c-line1"}, lines: map[string]int{"c-line1": 1}},
			},
			sessions: []stormSession{{id: "ses_1", events: map[int64]string{1: "x", 2: "y"}, shown: map[int64]string{2: "y"}, counted: 2}},
			effects:  map[string]int{"a-post": 1, "a-file": 1, "b-post": 1},
			inbox:    []string{"act_5", "act_6"},
		}
	}
	if bad := honest().violations(); len(bad) > 0 {
		t.Errorf("an honest record: %q", bad)
	}
	for name, c := range map[string]struct {
		doctor func(r *stormRecord)
		wants  string
	}{
		"twice":             {func(r *stormRecord) { r.effects["a-post"]++ }, "a-post happened 2 times"},
		"unknown, twice":    {func(r *stormRecord) { r.effects["b-post"]++ }, "b-post happened 2 times"},
		"line twice":        {func(r *stormRecord) { r.turns[2].lines["c-line1"]++ }, "c-line1 happened 2 times"},
		"forgotten":         {func(r *stormRecord) { r.effects["z-post"] = 1 }, "z-post happened, and the server neither"},
		"called failed":     {func(r *stormRecord) { r.turns[0].actions[0].state = "FAILED" }, "a-post happened, and the server neither"},
		"line forgotten":    {func(r *stormRecord) { r.turns[2].said = nil }, "c-line1 happened, and the server neither"},
		"invented":          {func(r *stormRecord) { delete(r.effects, "a-file") }, "a-file did not happen"},
		"line invented":     {func(r *stormRecord) { r.turns[2].lines = nil }, "c-line1 did not happen"},
		"accepted twice":    {func(r *stormRecord) { r.turns[0].actions[2].state = "SUCCEEDED" }, "a-file is accepted 2 times"},
		"nobody is asked":   {func(r *stormRecord) { r.inbox = r.inbox[:1] }, "act_6 (b-put) is UNKNOWN"},
		"asked for nothing": {func(r *stormRecord) { r.inbox = append(r.inbox, "act_1") }, "act_1 (a-post) is SUCCEEDED"},
		"id of two actions": {func(r *stormRecord) { r.turns[1].actions[0].id = "act_2" }, "act_2 is the id of two things"},
		"id of two turns":   {func(r *stormRecord) { r.turns[1].id = "trn_1" }, "trn_1 is the id of two things"},
		"no id":             {func(r *stormRecord) { r.turns[0].attempts[0] = "" }, "without an id"},
		"one message twice": {func(r *stormRecord) { r.sent[0].turns[1] = "trn_2" }, "message m1 is two turns"},
		"two messages once": {func(r *stormRecord) { r.sent[1].turns[0] = "trn_1" }, "is of two messages"},
		"admission lost":    {func(r *stormRecord) { r.sent[1].turns[0] = "trn_9" }, "trn_9 of message m2 was admitted and is lost"},
		"gap":               {func(r *stormRecord) { delete(r.sessions[0].events, 1); r.sessions[0].events[3] = "z" }, "event 1 is missing"},
		"not proven":        {func(r *stormRecord) { r.sessions[0].broken = "altered" }, "does not prove: altered"},
		"tail cut":          {func(r *stormRecord) { r.sessions[0].counted = 3 }, "2 events are listed, 3 proven"},
		"shown and gone":    {func(r *stormRecord) { r.sessions[0].shown[3] = "z" }, "event 3 was shown"},
		"shown otherwise":   {func(r *stormRecord) { r.sessions[0].shown[2] = "z" }, "event 2 was shown"},
		"shown again":       {func(r *stormRecord) { r.sessions[0].twice = 1 }, "1 events were shown twice"},
		"stream refused":    {func(r *stormRecord) { r.sessions[0].refused = "a gap" }, "session ses_1: a gap"},
		"never ended":       {func(r *stormRecord) { r.turns[0].state = "WAITING_ACTION" }, "has not ended: WAITING_ACTION"},
		"open":              {func(r *stormRecord) { r.turns[0].open = []string{"act_1"} }, "it left open [act_1]"},
		"no reason":         {func(r *stormRecord) { r.turns[2].state = "FAILED" }, "FAILED without a reason"},
		"debt":              {func(r *stormRecord) { r.debt = []string{"attempt att_1"} }, "not cleaned up: attempt att_1"},
		"orphan":            {func(r *stormRecord) { r.left = []string{"process 7"} }, "left over: process 7"},
		"damaged":           {func(r *stormRecord) { r.damaged = []string{"a.txt"} }, "damaged: a.txt"},
		"fell":              {func(r *stormRecord) { r.fell = []string{"server"} }, "ended by itself: server"},
	} {
		r := honest()
		c.doctor(r)
		if found := strings.Join(r.violations(), "; "); !strings.Contains(found, c.wants) {
			t.Errorf("%s: wants %q, found %q", name, c.wants, found)
		}
	}
}

//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/fault"
	"bivouac/test/e2e/stack"
)

// The matrix: kill -9 of every process at every step at which it could matter.
var matrix = []cell{
	{turn: "personal", label: fault.ServerTurnActivated, what: "the turn is active, nothing else", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerModelAnswered, what: "an answer in memory", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerIntentCommitted, nth: 2, what: "the post is an intent, nothing sent", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerOutcomeReceived, nth: 2, what: "the post's answer in memory", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerOutcomeReceived, nth: 5, what: "the write's result in memory", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerApprovalConsumed, what: "the approved write is an intent", ends: "COMPLETED"},
	{turn: "personal", label: fault.ServerClaimCommitted, nth: 3, what: "the write is claimed, the runner not told", ends: "COMPLETED"},
	{turn: "coding", label: fault.ServerClaimCommitted, what: "the turn is claimed, the runner not told", ends: "COMPLETED"},

	{turn: "personal", label: fault.BrokerCallLogged, what: "the post is logged and not sent", ends: "UNKNOWN", unknown: []string{"post"}},
	{turn: "personal", label: fault.BrokerCallAnswered, what: "the post is answered and not logged", ends: "UNKNOWN", unknown: []string{"post"}},
	{turn: "personal", label: fault.BrokerCallAnswered, nth: 2, what: "the put is answered and not logged", ends: "COMPLETED"},
	{turn: "personal", label: fault.BrokerCallLogged, way: "mcp", keeper: mcpKeeper, what: "the MCP call is logged and not sent", ends: "UNKNOWN", unknown: []string{"post"}},
	{turn: "personal", label: fault.BrokerCallAnswered, way: "mcp", keeper: mcpKeeper, what: "the MCP call is answered and not logged", ends: "UNKNOWN", unknown: []string{"post"}},
	{turn: "personal", label: fault.ServerOutcomeReceived, nth: 2, way: "mcp", keeper: mcpKeeper, what: "the MCP call's answer in memory", ends: "COMPLETED"},
	{turn: "personal", label: fault.BrokerModelStreaming, what: "the model speaks", ends: "COMPLETED"},
	{turn: "coding", label: fault.BrokerCallAnswered, what: "the worker's post is answered and not logged", ends: "UNKNOWN", unknown: []string{"post"}},
	{turn: "coding", label: fault.BrokerModelStreaming, nth: 3, what: "the model speaks to the worker", ends: "COMPLETED"},

	{turn: "personal", label: fault.EdgeEffectIntent, nth: 3, what: "the write is journalled as intent", ends: "COMPLETED"},
	{turn: "personal", label: fault.EdgeEffectDone, nth: 3, what: "the file is written, nothing journalled", ends: "COMPLETED"},
	{turn: "personal", label: fault.EdgeEffectDone, nth: 3, way: "edited", meanwhile: edited,
		what: "the file is written, and a person changes it", ends: "COMPLETED", unknown: []string{"file"}},
	{turn: "personal", label: fault.EdgeResultJournalled, nth: 3, what: "the write's result is journalled", ends: "COMPLETED"},
	{turn: "coding", label: fault.EdgeClaimJournalled, what: "the claim is journalled, no supervisor", ends: "COMPLETED"},
	{turn: "coding", label: fault.EdgeClaimJournalled, way: "restored", meanwhile: restored,
		what: "the claim is journalled on a disk that is lost", ends: "COMPLETED"},

	{turn: "coding", label: fault.SuperviseBegun, what: "the supervisor has begun", ends: "COMPLETED"},
	{turn: "coding", label: fault.SuperviseExecStarted, what: "the first command is about to run", ends: "COMPLETED"},
	{turn: "coding", label: fault.SuperviseExecDone, nth: 2, what: "the second command ran", ends: "COMPLETED"},
	{turn: "coding", label: fault.SuperviseResult, what: "the result is journalled", ends: "COMPLETED"},

	{turn: "coding", label: fault.WorkerModelAnswered, what: "the worker has an answer", ends: "COMPLETED"},
	{turn: "coding", label: fault.WorkerToolDone, nth: 2, what: "the worker has the post's result, no checkpoint", ends: "FAILED"},
}

// short are the cells of a short run: one a way in which an outcome is found.
var short = []string{"personal/server.action.outcome@2", "personal/broker.call.answered@1", "personal/edge.effect.done@3"}

// TestKillMatrix is INV-3, INV-4, INV-5 and INV-14 against kill -9: nothing happens
// twice, nothing is forgotten or invented, what is not known is said to be unknown,
// and the session goes on.
func TestKillMatrix(t *testing.T) {
	bin, err := stack.Build("faults")
	if err != nil {
		t.Fatal(err)
	}
	var seen sightings
	t.Run("cells", func(t *testing.T) {
		for _, c := range matrix {
			if testing.Short() && !slices.Contains(short, c.name()) {
				continue
			}
			t.Run(strings.ReplaceAll(c.name(), "/", "."), func(t *testing.T) {
				t.Parallel()
				s := c.run(t, bin, patience)
				seen.add(s)
				fmt.Println(s.line())
				for _, bad := range append(s.violations(), c.surprises(s)...) {
					t.Errorf("%s (%s): %s", s.cell, c.what, bad)
				}
			})
		}
	})
	if len(seen.all) == len(matrix) {
		seen.judge(t)
	}
}

// TestPlantedBugsAreFound takes the intent's write, and the claim's compare-and-set,
// out of the server, and the matrix fails: not by a label that is missing, but by
// what the world saw.
func TestPlantedBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the server twice")
	}
	for tag, planted := range map[string]struct{ cell, found string }{
		"bug_no_intent": {"personal/server.action.outcome@2", "post happened, and the server neither says so nor lists it as unknown"},
		"bug_no_claim":  {"coding/edge.claim.journalled@1/restored", "2 supervisors passed the claim"},
	} {
		t.Run(tag, func(t *testing.T) {
			t.Parallel()
			bin, err := stack.Rebuild("bivouac-server", "faults", tag)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(matrix, func(c cell) bool { return c.name() == planted.cell })
			if at < 0 {
				t.Fatalf("there is no cell %s", planted.cell)
			}
			s := matrix[at].run(t, bin, 15*time.Second)
			fmt.Println("planted", tag+":", s.line())
			if found := strings.Join(s.violations(), "; "); !strings.Contains(found, planted.found) {
				t.Errorf("the matrix does not find it: wants %q, found %q", planted.found, found)
			}
		})
	}
}

// surprises are what this kill should lead to and did not.
func (c cell) surprises(s sighting) (bad []string) {
	if s.first.State != c.ends {
		bad = append(bad, fmt.Sprintf("the turn is %s{%s}, not %s", s.first.State, s.first.Reason, c.ends))
	}
	var names []string
	for _, id := range s.unknown {
		_, name, _ := strings.Cut(id, "-")
		names = append(names, name)
	}
	if !slices.Equal(names, c.unknown) {
		bad = append(bad, fmt.Sprintf("unknown are %v, not %v", names, c.unknown))
	}
	return bad
}

// sightings of all cells.
type sightings struct {
	mu  sync.Mutex // guards all
	all []sighting
}

func (s *sightings) add(one sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, one)
}

// judge says what holds of the matrix as a whole: it covers all processes, and an
// unknown outcome means both that something happened and that nothing did.
func (s *sightings) judge(t *testing.T) {
	labels, roles := map[string]bool{}, map[string]bool{}
	happened, nothing := 0, 0
	for _, one := range s.all {
		role, _, _ := strings.Cut(one.label, ".")
		labels[one.label], roles[role] = true, true
		for _, id := range one.unknown {
			if one.effects[id] > 0 {
				happened++
			} else {
				nothing++
			}
		}
	}
	fmt.Printf("%d cells, %d labels, %d processes; unknown outcomes that happened: %d, that did not: %d\n", len(s.all), len(labels), len(roles), happened, nothing)
	if len(labels) < 10 || len(roles) < 5 {
		t.Errorf("%d labels of %d processes: at least 10 of 5 are wanted", len(labels), len(roles))
	}
	if happened == 0 || nothing == 0 {
		t.Errorf("unknown outcomes that happened: %d, that did not: %d; at least one of each is wanted", happened, nothing)
	}
}

package steptable

import (
	"reflect"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

type state string
type event string

var table = map[state]map[event]state{
	"A": {"go": "B", "skip": "C", "stay": "A"},
	"B": {"go": "C", "jump": "C"},
	"C": {},
	"D": {"go": "C"},
}

func TestNext(t *testing.T) {
	if to, err := Next("thing 1", table, "A", "go"); to != "B" || err != nil {
		t.Errorf("A go = %s, %v", to, err)
	}
	for _, c := range []struct {
		s state
		e event
	}{{"C", "go"}, {"A", "jump"}, {"Z", "go"}} {
		to, err := Next("thing 1", table, c.s, c.e)
		if to != c.s || protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("%s %s = %s, %v", c.s, c.e, to, err)
		}
		for _, part := range []string{"thing 1", string(c.s), string(c.e)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not name %q", err, part)
			}
		}
	}
}

func TestPairs(t *testing.T) {
	want := []Pair[state]{{"A", "A"}, {"A", "B"}, {"A", "C"}, {"B", "C"}, {"D", "C"}}
	if got := Pairs(table); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReachable(t *testing.T) {
	want := map[state]bool{"A": true, "B": true, "C": true}
	if got := Reachable(table, "A"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMermaid(t *testing.T) {
	want := `stateDiagram-v2
    [*] --> A
    A --> A: stay
    A --> B: go
    A --> C: skip
    B --> C: go, jump
    C --> [*]
`
	for range 10 {
		if got := Mermaid(table, []state{"A", "B", "C"}, "A"); got != want {
			t.Fatalf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

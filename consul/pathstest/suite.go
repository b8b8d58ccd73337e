// Package pathstest is the suite of the Paths port: whatever says who may reach
// what passes it.
package pathstest

import (
	"context"
	"testing"
	"time"

	"bivouac/consul"
)

// Paths is the port, as the broker declares it.
type Paths interface {
	Decide(source, destination string, r *consul.Request) consul.Decision
	Run(ctx context.Context, changed func()) error
}

// Source of truth behind an implementation.
type Source interface {
	Paths
	// Replace makes the given entries the only ones.
	Replace(t *testing.T, intentions ...consul.Intention)
}

// Run runs the suite. open makes an empty source.
func Run(t *testing.T, open func(t *testing.T) Source) {
	t.Run("Precedence", func(t *testing.T) { precedence(t, open) })
	t.Run("DefaultDeny", func(t *testing.T) { defaultDeny(t, open) })
	t.Run("Permissions", func(t *testing.T) { permissions(t, open) })
	t.Run("ChangeIsSeen", func(t *testing.T) { changeIsSeen(t, open) })
}

func allow(name string) consul.Source { return consul.Source{Name: name, Allow: true} }
func deny(name string) consul.Source  { return consul.Source{Name: name} }

// Row is one pair and its verdict.
type Row struct {
	Source, Destination string
	Allowed             bool
}

// Precedence as Consul has it: exact destination first, then exact source.
var (
	PrecedenceEntries = []consul.Intention{
		{Destination: "db", Sources: []consul.Source{allow("web"), deny("*")}},
		{Destination: "cache", Sources: []consul.Source{deny("web"), allow("*")}},
		{Destination: "queue", Sources: []consul.Source{allow("web")}},
		{Destination: "*", Sources: []consul.Source{allow("admin"), deny("web"), deny("*")}},
	}
	PrecedenceRows = []Row{
		{"web", "db", true},
		{"other", "db", false},
		{"admin", "db", false}, // *→db goes before admin→*
		{"web", "cache", false},
		{"other", "cache", true},
		{"web", "queue", true},
		{"admin", "queue", true}, // no source of queue matches, so *
		{"other", "queue", false},
		{"admin", "anything", true},
		{"web", "anything", false},
		{"other", "anything", false},
		{"*", "queue", false}, // a wildcard is no name
		{"web", "*", false},
		{"", "queue", false},
	}
)

func precedence(t *testing.T, open func(t *testing.T) Source) {
	s := open(t)
	s.Replace(t, PrecedenceEntries...)
	settled(t, s, "web", "db", true)
	for _, row := range PrecedenceRows {
		d := s.Decide(row.Source, row.Destination, nil)
		if d.Allowed != row.Allowed {
			t.Errorf("%s to %s: allowed=%v because %s", row.Source, row.Destination, d.Allowed, d.Reason)
		}
		if d.Reason == "" {
			t.Errorf("%s to %s: no reason", row.Source, row.Destination)
		}
	}
}

func defaultDeny(t *testing.T, open func(t *testing.T) Source) {
	s := open(t)
	if d := s.Decide("agent-a", "x", nil); d.Allowed {
		t.Errorf("an empty source allows: %s", d.Reason)
	}
	s.Replace(t, consul.Intention{Destination: "x", Sources: []consul.Source{allow("agent-a")}})
	settled(t, s, "agent-a", "x", true)
	for _, row := range []Row{{"agent-b", "x", false}, {"agent-a", "y", false}, {"acme--agent-a", "x", false}} {
		if d := s.Decide(row.Source, row.Destination, nil); d.Allowed {
			t.Errorf("%s to %s is allowed: %s", row.Source, row.Destination, d.Reason)
		}
	}
}

// changeIsSeen: a deny after an allow is seen and announced, and so is the way
// back.
func changeIsSeen(t *testing.T, open func(t *testing.T) Source) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 64)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { changed <- struct{}{} }) }()
	for _, allowed := range []bool{true, false, true} {
		source := consul.Source{Name: "agent-a", Allow: allowed}
		s.Replace(t, consul.Intention{Destination: "x", Sources: []consul.Source{source}})
		for s.Decide("agent-a", "x", nil).Allowed != allowed {
			select {
			case <-changed:
			case <-time.After(20 * time.Second):
				t.Fatalf("no change to allowed=%v was announced", allowed)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// settled runs the source until a pair has its verdict.
func settled(t *testing.T, s Source, source, destination string, allowed bool) {
	t.Helper()
	if s.Decide(source, destination, nil).Allowed == allowed {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Run(ctx, func() {
		if s.Decide(source, destination, nil).Allowed == allowed {
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if s.Decide(source, destination, nil).Allowed != allowed {
		t.Fatalf("%s to %s never became allowed=%v", source, destination, allowed)
	}
}

// Package consultest has path rules without files, for tests in virtual time. It decides
// as the files' evaluator does, and refuses to last.
package consultest

import (
	"context"
	"sync"

	"bivouac/consul"
)

// Memory is the source of rules that a test sets.
type Memory struct {
	mu      sync.Mutex // guards below
	set     *consul.Set
	changed chan struct{} // closed and replaced by Set
}

// NewMemory begins with the given entries.
func NewMemory(intentions ...consul.Intention) *Memory {
	return &Memory{set: consul.NewSet(intentions...), changed: make(chan struct{})}
}

// Allow is an intention that lets sources reach destination.
func Allow(destination string, sources ...string) consul.Intention {
	in := consul.Intention{Destination: destination, At: "memory"}
	for _, s := range sources {
		in.Sources = append(in.Sources, consul.Source{Name: s, Allow: true, At: "memory"})
	}
	return in
}

// Set replaces all entries.
func (m *Memory) Set(intentions ...consul.Intention) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set = consul.NewSet(intentions...)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Decide evaluates one pair and one request; see Set.Decide.
func (m *Memory) Decide(source, destination string, r *consul.Request) consul.Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.set.Decide(source, destination, r)
}

// Run calls changed after every Set until ctx ends.
func (m *Memory) Run(ctx context.Context, changed func()) error {
	m.mu.Lock()
	next := m.changed
	m.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
			m.mu.Lock()
			next = m.changed
			m.mu.Unlock()
			changed()
		}
	}
}

package consul

import (
	"context"
	"sync"
)

// Memory is the port without files, for tests in virtual time and single
// processes.
type Memory struct {
	mu      sync.Mutex // guards below
	set     *Set
	changed chan struct{} // closed and replaced by Set
}

// NewMemory begins with the given entries.
func NewMemory(intentions ...Intention) *Memory {
	return &Memory{set: NewSet(intentions...), changed: make(chan struct{})}
}

// Allow is an intention that lets sources reach destination.
func Allow(destination string, sources ...string) Intention {
	in := Intention{Destination: destination, At: "memory"}
	for _, s := range sources {
		in.Sources = append(in.Sources, Source{Name: s, Allow: true, At: "memory"})
	}
	return in
}

// Set replaces all entries.
func (m *Memory) Set(intentions ...Intention) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set = NewSet(intentions...)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Decide evaluates one pair and one request; see Set.Decide.
func (m *Memory) Decide(source, destination string, r *Request) Decision {
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

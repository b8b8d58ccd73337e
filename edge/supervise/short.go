package supervise

import (
	"sync"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
)

// short says whether model calls of the attempt wait for other terms: the daemon
// renews sooner then.
type short struct {
	mu      sync.Mutex // guards the fields below
	is      bool
	changed chan struct{} // closed and replaced at each change
}

func newShort() *short { return &short{changed: make(chan struct{})} }

func (s *short) set(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is == is {
		return
	}
	s.is = is
	close(s.changed)
	s.changed = make(chan struct{})
}

// now returns it, and what is closed at the next change.
func (s *short) now() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is, s.changed
}

// sliceOf terms, as the relay reads it.
func sliceOf(t *runnerv1.LeaseTerms) relay.Slice {
	return relay.Slice{ID: t.GetSlice().GetId(), Ceiling: t.GetSlice().GetCeilingMicroUsd(), Whole: t.GetSlice().GetWhole()}
}

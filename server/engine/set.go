package engine

import "sync"

// set is what this incarnation has in hand, shared by ticks and ops. The zero set
// is empty.
type set[K comparable] struct {
	mu   sync.Mutex // guards keys
	keys map[K]bool
}

// keep adds a key, and reports whether it was not there.
func (s *set[K]) keep(k K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.keys[k]
	if s.keys == nil {
		s.keys = map[K]bool{}
	}
	s.keys[k] = true
	return !was
}

func (s *set[K]) forget(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, k)
}

func (s *set[K]) has(k K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[k]
}

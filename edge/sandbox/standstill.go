package sandbox

import (
	"context"
	"sync"
	"time"
)

// Standstill is whether a group is frozen, for those whose time or work stands
// still with it. The zero value is not frozen.
type Standstill struct {
	mu      sync.Mutex // guards the fields below
	frozen  bool
	changed chan struct{} // closed and replaced at each change; nil before the first look
}

// Set notes that the group is frozen, or not any more.
func (s *Standstill) Set(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == frozen {
		return
	}
	s.frozen = frozen
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Look returns the state, and what is closed at the next change.
func (s *Standstill) Look() (frozen bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.frozen, s.changed
}

// Moving waits until the group is not frozen.
func (s *Standstill) Moving(ctx context.Context) error {
	for {
		frozen, changed := s.Look()
		if !frozen {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Elapse waits for a duration of which the time while frozen is no part. It
// reports false when done was closed before.
func (s *Standstill) Elapse(d time.Duration, done <-chan struct{}) bool {
	for {
		frozen, changed := s.Look()
		if frozen {
			select {
			case <-changed:
				continue
			case <-done:
				return false
			}
		}
		began, timer := time.Now(), time.NewTimer(d)
		select {
		case <-timer.C:
			return true
		case <-changed:
			timer.Stop()
			d -= time.Since(began)
		case <-done:
			timer.Stop()
			return false
		}
	}
}

package enginetest

import (
	"context"
	"sync"

	"bivouac/edge/protocol"
)

var errStopped = protocol.Errorf(protocol.CodeCancelled, "the op was stopped: its work is no longer wanted")

// Steps is the engine's Ops of a test: ops wait until the driver runs them, one at
// a time, in its own goroutine.
type Steps struct {
	mu    sync.Mutex // guards below
	queue []step
}

type step struct {
	key     string
	fn      func(context.Context)
	stopped bool
}

// Start queues fn.
func (s *Steps) Start(key string, fn func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range s.queue {
		if op.key == key {
			return false
		}
	}
	s.queue = append(s.queue, step{key: key, fn: fn})
	return true
}

// Stop marks an op: it runs with a cancelled context.
func (s *Steps) Stop(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i].key == key {
			s.queue[i].stopped = true
		}
	}
}

// Running reports an op that waits.
func (s *Steps) Running(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range s.queue {
		if op.key == key {
			return true
		}
	}
	return false
}

// Keys of the ops that wait, oldest first.
func (s *Steps) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, len(s.queue))
	for i, op := range s.queue {
		keys[i] = op.key
	}
	return keys
}

// Step runs the i-th waiting op to its end.
func (s *Steps) Step(ctx context.Context, i int) bool {
	s.mu.Lock()
	if i < 0 || i >= len(s.queue) {
		s.mu.Unlock()
		return false
	}
	op := s.queue[i]
	s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if op.stopped {
		cancel(errStopped)
	}
	op.fn(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i].key == op.key {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			break
		}
	}
	return true
}

// Run waits for the end: the test calls Step itself.
func (s *Steps) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

package supervise

import (
	"context"
	"time"
)

// watchEvery is the longest time between two looks at the lease: Go's timers do
// not count suspend, the lease's clock does (INV-20).
const watchEvery = time.Second

// runClock ends what has no time left.
func (s *supervisor) runClock(ctx context.Context) error {
	select {
	case <-s.begun.c:
	case <-ctx.Done():
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		timer.Reset(max(s.tick(), time.Millisecond))
	}
}

// tick judges authority, retention, deadline and progress, and says when to look
// again.
func (s *supervisor) tick() (again time.Duration) {
	authority, retention := s.lease.Authority(), s.lease.Retention()
	again = min(watchEvery, retention)
	if retention <= 0 {
		s.retired.fire()
		again = watchEvery
	}
	s.mu.Lock()
	running, deadline, a := s.phase == phaseRunning, s.deadline, s.attempt
	s.mu.Unlock()
	if !running || a == nil {
		return again
	}
	now := s.lease.Now()
	switch {
	case authority <= 0:
		a.end(errLost)
	case deadline > 0 && now >= deadline:
		a.end(errDeadline)
	case a.idle(now) >= s.cfg.WorkerIdle:
		a.end(errStalled)
	default:
		again = min(again, authority)
		if deadline > 0 {
			again = min(again, deadline-now)
		}
	}
	return again
}

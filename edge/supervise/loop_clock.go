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
		case <-s.renewed:
		case <-ctx.Done():
			return nil
		}
		timer.Reset(max(s.tick(ctx), time.Millisecond))
	}
}

// tick judges authority, retention, deadline and progress, and says when to look
// again. An attempt without authority is held, where that can be done, until its
// retention is over.
func (s *supervisor) tick(ctx context.Context) (again time.Duration) {
	authority, retention := s.lease.Authority(), s.lease.Retention()
	again = min(watchEvery, retention)
	if retention <= 0 {
		s.retired.fire()
		again = watchEvery
	}
	s.mu.Lock()
	running, deadline, a := s.phase == phaseRunning, s.deadline, s.attempt
	s.mu.Unlock()
	if !running || a == nil || isClosed(a.ending) {
		return again
	}
	now := s.lease.Now()
	switch {
	case authority <= 0 && (retention <= 0 || !a.freezes()):
		a.end(errLost)
	case deadline > 0 && now >= deadline:
		a.end(errDeadline)
	case authority <= 0:
		if !a.held() {
			s.orLose(a, a.suspend(ctx))
		}
		if deadline > 0 {
			again = min(again, deadline-now)
		}
	case a.held():
		s.orLose(a, a.resume(ctx))
		again = time.Millisecond
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

// orLose ends an attempt that could not be held, or could not go on.
func (s *supervisor) orLose(a *attempt, err error) {
	if err != nil {
		s.cfg.Log.Error("the attempt's sandboxes cannot be frozen or thawed, and are ended", "error", err)
		a.end(errLost)
	}
}

package sandbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/sandbox"
)

// A time limit stands still while its group is frozen, and goes on from where it was.
func TestElapseStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sandbox.Standstill
		began, over := time.Now(), make(chan time.Duration, 1)
		go func() {
			if s.Elapse(10*time.Second, t.Context().Done()) {
				over <- time.Since(began)
			}
		}()
		for _, frozen := range []bool{true, false, false, true, false} {
			time.Sleep(3 * time.Second)
			s.Set(frozen)
		}
		// Frozen from 3 s to 6 s and from 12 s to 15 s.
		if took := <-over; took != 16*time.Second {
			t.Errorf("10 s with 6 s of standstill took %v", took)
		}
		s.Set(true)
		done := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(done) })
		if s.Elapse(time.Second, done) {
			t.Error("time passed while frozen")
		}
	})
}

// Who waits for movement goes on at a thaw, and is told when it does not come.
func TestMovingWaitsForAThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sandbox.Standstill
		if err := s.Moving(t.Context()); err != nil {
			t.Errorf("nothing was ever frozen: %v", err)
		}
		s.Set(true)
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if s.Moving(brief) == nil {
			t.Error("a frozen group moves")
		}
		began := time.Now()
		time.AfterFunc(5*time.Second, func() { s.Set(false) })
		if err := s.Moving(t.Context()); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

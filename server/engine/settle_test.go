package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

// A running loop works on several items at once, but never on more than it may, and
// one that fails keeps no other back; a stepped one keeps the order.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		items := []int{0, 1, 2, 3, 4, 5, 6}
		broken := errors.New("broken")
		for atOnce, want := range map[int]time.Duration{0: 7 * time.Second, 1: 7 * time.Second, 3: 3 * time.Second} {
			var running, most atomic.Int64
			tried := make([]bool, len(items))
			begun := time.Now()
			worked, err := spread(atOnce, items, func(i int) (bool, error) {
				if now := running.Add(1); now > most.Load() {
					most.Store(now)
				}
				defer running.Add(-1)
				tried[i] = true
				time.Sleep(time.Second)
				switch i {
				case 2:
					return true, broken
				case 3:
					return true, protocol.Errorf(protocol.CodeStaleFence, "late")
				}
				return i == 5, nil
			})
			if !worked || err != broken || slices.Contains(tried, false) {
				t.Errorf("%d at once: worked %v, %v, tried %v", atOnce, worked, err, tried)
			}
			if took := time.Since(begun); took != want || most.Load() != int64(max(1, atOnce)) {
				t.Errorf("%d at once: took %s, %d at once", atOnce, took, most.Load())
			}
		}
	})
}

// What the store could not take stays in its place and is tried again; what is
// applied, or came too late, is gone.
func TestCompletionsThatFailStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{Elapsed: lease.Boottime})
		e.atOnce = 4
		var down atomic.Bool
		down.Store(true)
		for i := range 6 {
			e.settled.put(completion{op: fmt.Sprint(i), apply: func(context.Context) error {
				switch {
				case i == 0:
					return protocol.Errorf(protocol.CodeStaleFence, "late")
				case i%2 == 1 && down.Load():
					return protocol.Errorf(protocol.CodeUnavailable, "no store")
				}
				return nil
			}})
		}
		left := func() (ops []string) {
			for _, c := range e.settled.queue {
				ops = append(ops, c.op)
			}
			return ops
		}
		if worked, err := e.tickSettle(t.Context()); worked || err == nil || !slices.Equal(left(), []string{"1", "3", "4", "5"}) {
			t.Errorf("worked %v, %v; left %v", worked, err, left())
		}
		if worked, err := e.tickSettle(t.Context()); worked || err != nil {
			t.Errorf("before its time: worked %v, %v", worked, err)
		}
		down.Store(false)
		time.Sleep(settleRetry)
		if worked, err := e.tickSettle(t.Context()); !worked || err != nil || len(left()) != 0 {
			t.Errorf("again: worked %v, %v; left %v", worked, err, left())
		}
	})
}

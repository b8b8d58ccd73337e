package sim

import (
	"container/heap"
	"time"
)

// event is one step to come.
type event struct {
	at   time.Duration // since the begin of the run
	tie  uint64        // orders what is due at once: the seed decides
	n    uint64        // orders equal ties
	name string
	do   func()
	off  bool
}

// queue orders events by virtual time, then by the seeded tie-break.
type queue []*event

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.tie != b.tie:
		return a.tie < b.tie
	}
	return a.n < b.n
}

func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}

// now is the time that has elapsed, suspend included. Wall clocks may be ahead of
// it: they were set.
func (s *Sim) now() time.Duration { return time.Since(s.begun) - s.jumped }

// after makes do a step of its own in d. A step without a name is not traced
// unless it notes something.
func (s *Sim) after(d time.Duration, name string, do func()) *event {
	s.events++
	e := &event{at: s.now() + max(d, 0), tie: s.rng.Uint64(), n: s.events, name: name, do: do}
	heap.Push(&s.queue, e)
	return e
}

// cancel takes a step out; nil is none.
func (e *event) cancel() {
	if e != nil {
		e.off, e.do = true, nil
	}
}

// next is the earliest step that still counts, or nil.
func (s *Sim) next() *event {
	for s.queue.Len() > 0 {
		if e := heap.Pop(&s.queue).(*event); !e.off {
			return e
		}
	}
	return nil
}

// chance is true with probability p.
func (s *Sim) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

// between is a duration of the half-open interval.
func (s *Sim) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(s.rng.Int64N(int64(b-a)))
}

// pick is one of several.
func pick[T any](s *Sim, from ...T) T { return from[s.rng.IntN(len(from))] }

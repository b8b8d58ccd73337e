package engine

import (
	"slices"
	"testing"
	"time"

	"bivouac/server/execution"
)

// A change that is made while a list is under way may not be in it: another list follows
// soon.
func TestChangeWhileListing(t *testing.T) {
	a := newAllocated(10)
	begun := time.Now()
	list := func(at time.Time, during func()) bool {
		a.lists(at, 1)
		during()
		a.listed(at, nil, nil)
		return a.due(1, listAllocations, at.Add(listPause))
	}
	if list(begun, func() {}) {
		t.Error("another list is due after one that nothing changed in")
	}
	if !list(begun.Add(time.Minute), a.relist) {
		t.Error("the change is forgotten")
	}
	if list(begun.Add(2*time.Minute), func() {}) {
		t.Error("the change is remembered after a list that has it")
	}
}

// What counts beside the jobs of attempts: those that end, by name where their end was asked
// for, and those that were asked for and are in no list yet. What has ended counts no more.
func TestBesides(t *testing.T) {
	a := newAllocated(10)
	now := time.Now()
	a.asked("new", now)
	a.listed(now, []Allocated{{Job: "own"}, {Job: "out-of-reach", Stopped: true}, {Job: "needless"}, {Job: "over", Stopped: true, Ended: true}}, nil)
	n, ending := a.besides([]execution.Attempt{{Allocation: "own"}})
	if n != 3 || !slices.Equal(ending, []string{"out-of-reach"}) {
		t.Errorf("%d beside, %q end", n, ending)
	}
	a.listed(now.Add(askGrace), []Allocated{{Job: "own"}, {Job: "out-of-reach", Stopped: true, Ended: true}}, nil) // its node was purged
	if n, ending := a.besides([]execution.Attempt{{Allocation: "own"}}); n != 0 || len(ending) != 0 {
		t.Errorf("after all have ended: %d beside, %q end", n, ending)
	}
}

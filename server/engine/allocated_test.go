package engine

import (
	"testing"
	"time"
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

package protocol

import (
	"math"
	"slices"
	"testing"
)

func TestNewFence(t *testing.T) {
	for _, c := range []struct {
		epoch, n uint32
		ok       bool
	}{
		{1, 1, true}, {1<<31 - 1, math.MaxUint32, true}, {0, 1, false}, {1, 0, false}, {1 << 31, 1, false},
	} {
		f, err := NewFence(c.epoch, c.n)
		if (err == nil) != c.ok {
			t.Errorf("NewFence(%d, %d) = %v, %v", c.epoch, c.n, f, err)
		}
		if err == nil && (f <= 0 || f.Epoch() != c.epoch || f.N() != c.n) {
			t.Errorf("NewFence(%d, %d) = %d: epoch %d, n %d", c.epoch, c.n, f, f.Epoch(), f.N())
		}
	}
}

// TestFenceOrder: everything that a restored store gives out is above everything
// that was given out before. INV-3.
func TestFenceOrder(t *testing.T) {
	fence := func(epoch, n uint32) Fence {
		f, err := NewFence(epoch, n)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	ordered := []Fence{0, fence(1, 1), fence(1, 2), fence(1, 1<<31), fence(1, math.MaxUint32), fence(2, 1), fence(2, 7), fence(1<<31-1, 1)}
	if !slices.IsSorted(ordered) {
		t.Errorf("out of order: %v", ordered)
	}
}

func TestFenceNext(t *testing.T) {
	start, _ := NewFence(3, 7)
	for _, c := range []struct {
		epoch uint32
		want  string
		code  Code
	}{{3, "3.8", ""}, {4, "4.1", ""}, {2, "", CodeStaleFence}} {
		next, err := start.Next(c.epoch)
		if CodeOf(err) != c.code || err == nil && (next.String() != c.want || next <= start) {
			t.Errorf("%s.Next(%d) = %s, %v", start, c.epoch, next, err)
		}
	}
	first, err := Fence(0).Next(1)
	if err != nil || first.String() != "1.1" {
		t.Errorf("the first fence is %s, %v", first, err)
	}
	last, _ := NewFence(3, math.MaxUint32)
	if _, err := last.Next(3); err == nil {
		t.Error("an exhausted epoch gave another fence")
	}
	if next, err := last.Next(4); err != nil || next.String() != "4.1" {
		t.Errorf("after an exhausted epoch: %s, %v", next, err)
	}
}

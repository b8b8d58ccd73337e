package protocol

import "fmt"

// Fence orders everything that may advance one piece of state. The upper half
// is the store's epoch, which a restore raises, so that a fence of a rewound
// copy is always below every fence given out after it. INV-3.
//
// It is a positive 63-bit integer and travels as one; zero is "no fence".
type Fence int64

// NewFence packs epoch and n. Both must be positive and fit 31 and 32 bits.
func NewFence(epoch, n uint32) (Fence, error) {
	if epoch == 0 || epoch > 1<<31-1 || n == 0 {
		return 0, Errorf(CodeInvalidArgument, "fence {%d, %d} is out of range", epoch, n)
	}
	return Fence(int64(epoch)<<32 | int64(n)), nil
}

// Epoch is the store epoch under which the fence was given out.
func (f Fence) Epoch() uint32 { return uint32(int64(f) >> 32) }

// N counts within the epoch.
func (f Fence) N() uint32 { return uint32(int64(f)) }

// Next is the lowest fence above f in the given epoch.
func (f Fence) Next(epoch uint32) (Fence, error) {
	if epoch < f.Epoch() {
		return 0, Errorf(CodeStaleFence, "store epoch %d is older than fence %s", epoch, f)
	}
	if epoch > f.Epoch() {
		return NewFence(epoch, 1)
	}
	if f.N() == 1<<32-1 {
		return 0, Errorf(CodeInternal, "fence %s is exhausted", f)
	}
	return NewFence(epoch, f.N()+1)
}

func (f Fence) String() string { return fmt.Sprintf("%d.%d", f.Epoch(), f.N()) }

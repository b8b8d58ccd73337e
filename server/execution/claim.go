package execution

import (
	"time"

	"bivouac/edge/protocol"
)

// Claim is one supervisor's claim of an attempt.
type Claim struct {
	Runner    protocol.RunnerID
	BootNonce string
	// Fence that a winning claim gets; above every fence the attempt had.
	Fence protocol.Fence
}

// Claim decides a claim. The first wins (INV-14): the same runner and boot nonce
// again get the same answer with repeat set, whatever state the attempt has
// come to short of its end, and anybody else a conflict. The store repeats the
// decision as a compare-and-set.
func (a Attempt) Claim(c Claim, now time.Time) (next Attempt, repeat bool, err error) {
	if c.BootNonce == "" || c.Runner.IsZero() {
		return a, false, protocol.Errorf(protocol.CodeInvalidArgument,
			"a claim of attempt %s names no runner or no boot nonce", a.ID)
	}
	switch {
	case a.State.Terminal():
		return a, false, protocol.Errorf(protocol.CodeFailedPrecondition, "attempt %s has ended: %s", a.ID, a.State)
	case a.State.Held() && a.Runner == c.Runner && a.BootNonce == c.BootNonce:
		return a, true, nil
	case a.State.Held():
		return a, false, protocol.Errorf(protocol.CodeConflict, "attempt %s was claimed by another supervisor", a.ID)
	case a.State != AttemptOffered || a.Runner != c.Runner:
		return a, false, protocol.Errorf(protocol.CodeConflict, "attempt %s is not offered to runner %s", a.ID, c.Runner)
	case c.Fence <= a.Fence:
		return a, false, protocol.Errorf(protocol.CodeStaleFence, "fence %s is not above %s of attempt %s", c.Fence, a.Fence, a.ID)
	}
	next, err = a.Step(AttemptClaim, now)
	if err != nil {
		return a, false, err
	}
	next.BootNonce, next.Fence = c.BootNonce, c.Fence
	return next, false, nil
}

// CheckFence refuses everything but the current fence of a held attempt: what
// comes with another one is evidence, never a transition. INV-3.
func (a Attempt) CheckFence(f protocol.Fence) error {
	if f == 0 || f != a.Fence {
		return protocol.Errorf(protocol.CodeStaleFence, "fence %s is not the current fence of attempt %s", f, a.ID)
	}
	if !a.State.Held() {
		return protocol.Errorf(protocol.CodeStaleFence, "attempt %s is not held: %s", a.ID, a.State)
	}
	return nil
}

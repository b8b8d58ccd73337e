package execution

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/steptable"
)

// AttemptEvent moves an attempt.
type AttemptEvent string

const (
	AttemptOffer AttemptEvent = "offer"
	// AttemptWithdraw: declined, or the runner went away before it claimed.
	AttemptWithdraw AttemptEvent = "withdraw"
	// AttemptClaim: the first claim won. INV-14.
	AttemptClaim AttemptEvent = "claim"
	AttemptBegin AttemptEvent = "begin"
	// AttemptLapse: no renewal for the authority ttl.
	AttemptLapse AttemptEvent = "lapse"
	// AttemptRenew: a suspect attempt renewed within retention.
	AttemptRenew   AttemptEvent = "renew"
	AttemptSucceed AttemptEvent = "succeed"
	AttemptFail    AttemptEvent = "fail"
	AttemptCancel  AttemptEvent = "cancel"
	// AttemptInterrupt: the machine is gone, or the work on it, and nothing that
	// it did left the machine: a known outcome.
	AttemptInterrupt AttemptEvent = "interrupt"
	// AttemptGiveUp: an effect of it may have happened.
	AttemptGiveUp AttemptEvent = "give_up"
)

// AttemptNext is the whole life of an attempt. INV-2.
var AttemptNext = map[AttemptState]map[AttemptEvent]AttemptState{
	AttemptQueued: {
		AttemptOffer:  AttemptOffered,
		AttemptFail:   AttemptFailed, // not_placed
		AttemptCancel: AttemptCancelled,
	},
	AttemptOffered: {
		AttemptWithdraw: AttemptQueued,
		AttemptClaim:    AttemptClaimed,
		AttemptFail:     AttemptFailed, // not_placed
		AttemptCancel:   AttemptCancelled,
	},
	AttemptClaimed: {
		AttemptBegin:     AttemptRunning,
		AttemptLapse:     AttemptSuspect,
		AttemptSucceed:   AttemptSucceeded,
		AttemptFail:      AttemptFailed,
		AttemptCancel:    AttemptCancelled,
		AttemptInterrupt: AttemptInterrupted,
		AttemptGiveUp:    AttemptUnknown,
	},
	AttemptRunning: {
		AttemptBegin:     AttemptRunning, // told again after a lapse
		AttemptLapse:     AttemptSuspect,
		AttemptSucceed:   AttemptSucceeded,
		AttemptFail:      AttemptFailed,
		AttemptCancel:    AttemptCancelled,
		AttemptInterrupt: AttemptInterrupted,
		AttemptGiveUp:    AttemptUnknown,
	},
	AttemptSuspect: {
		AttemptBegin:     AttemptRunning,
		AttemptRenew:     AttemptRunning,
		AttemptSucceed:   AttemptSucceeded,
		AttemptFail:      AttemptFailed,
		AttemptCancel:    AttemptCancelled,
		AttemptInterrupt: AttemptInterrupted,
		AttemptGiveUp:    AttemptUnknown,
	},
	AttemptSucceeded:   {},
	AttemptFailed:      {},
	AttemptCancelled:   {},
	AttemptInterrupted: {},
	AttemptUnknown:     {},
}

// AttemptStates and AttemptEvents are all of them.
var (
	AttemptStates = []AttemptState{AttemptQueued, AttemptOffered, AttemptClaimed, AttemptRunning, AttemptSuspect,
		AttemptSucceeded, AttemptFailed, AttemptCancelled, AttemptInterrupted, AttemptUnknown}
	AttemptEvents = []AttemptEvent{AttemptOffer, AttemptWithdraw, AttemptClaim, AttemptBegin, AttemptLapse, AttemptRenew,
		AttemptSucceed, AttemptFail, AttemptCancel, AttemptInterrupt, AttemptGiveUp}
)

// Held reports that a supervisor holds the attempt: its claim won and it has
// not ended.
func (s AttemptState) Held() bool {
	return s == AttemptClaimed || s == AttemptRunning || s == AttemptSuspect
}

// Step makes one legal step and keeps the instants that belong to it. Offer and
// Claim set more; use those methods for them.
func (a Attempt) Step(ev AttemptEvent, now time.Time) (Attempt, error) {
	to, err := steptable.Next("attempt "+a.ID.String(), AttemptNext, a.State, ev)
	if err != nil {
		return a, err
	}
	a.State = to
	switch {
	case ev == AttemptOffer:
		a.OfferedAt = now
		a.DeferReason = ""
	case ev == AttemptWithdraw:
		a.Runner, a.OfferedAt = "", time.Time{}
		a.Allocation, a.AllocationAskedAt = "", time.Time{}
	case ev == AttemptClaim:
		a.ClaimedAt, a.RenewedAt = now, now
	case ev == AttemptBegin:
		if a.StartedAt.IsZero() {
			a.StartedAt = now
		}
	case ev == AttemptRenew:
		a.RenewedAt = now
	case to.Terminal():
		a.EndedAt = now
	}
	return a, nil
}

// Offer invites one runner to claim.
func (a Attempt) Offer(r protocol.RunnerID, now time.Time) (Attempt, error) {
	next, err := a.Step(AttemptOffer, now)
	if err != nil {
		return a, err
	}
	next.Runner = r
	return next, nil
}

// End makes a terminal step with its stable reason and a sentence for people.
func (a Attempt) End(ev AttemptEvent, reason, message string, now time.Time) (Attempt, error) {
	next, err := a.Step(ev, now)
	if err != nil {
		return a, err
	}
	if !next.State.Terminal() {
		return a, protocol.Errorf(protocol.CodeFailedPrecondition,
			"attempt %s cannot end by the step %q", a.ID, ev)
	}
	next.Reason, next.Message = reason, message
	return next, nil
}

package session

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/steptable"
)

// ApprovalEvent moves an approval.
type ApprovalEvent string

const (
	ApprovalApprove ApprovalEvent = "approve"
	ApprovalDeny    ApprovalEvent = "deny"
	ApprovalExpire  ApprovalEvent = "expire"
	ApprovalCancel  ApprovalEvent = "cancel" // its turn ended
	ApprovalConsume ApprovalEvent = "consume"
)

// ApprovalNext is the whole life of an approval. INV-2, INV-6.
var ApprovalNext = map[ApprovalState]map[ApprovalEvent]ApprovalState{
	ApprovalPending: {
		ApprovalApprove: ApprovalApproved,
		ApprovalDeny:    ApprovalDenied,
		ApprovalExpire:  ApprovalExpired,
		ApprovalCancel:  ApprovalCancelled,
	},
	ApprovalApproved: {
		ApprovalConsume: ApprovalConsumed,
		ApprovalExpire:  ApprovalExpired,
		ApprovalCancel:  ApprovalCancelled,
	},
	ApprovalDenied:    {},
	ApprovalExpired:   {},
	ApprovalCancelled: {},
	ApprovalConsumed:  {},
}

// ApprovalStates and ApprovalEvents are all of them.
var (
	ApprovalStates = []ApprovalState{ApprovalPending, ApprovalApproved, ApprovalDenied,
		ApprovalExpired, ApprovalCancelled, ApprovalConsumed}
	ApprovalEvents = []ApprovalEvent{ApprovalApprove, ApprovalDeny, ApprovalExpire, ApprovalCancel, ApprovalConsume}
)

// Step makes one legal step. Approving and consuming are refused from the expiry
// on, whether or not a tick has recorded it yet.
func (a Approval) Step(ev ApprovalEvent, now time.Time) (Approval, error) {
	to, err := steptable.Next("approval "+a.ID.String(), ApprovalNext, a.State, ev)
	if err != nil {
		return a, err
	}
	if (ev == ApprovalApprove || ev == ApprovalConsume) && !now.Before(a.ExpiresAt) {
		return a, protocol.Errorf(protocol.CodeFailedPrecondition,
			"approval %s expired at %s: ask the agent again", a.ID, a.ExpiresAt.UTC().Format(time.RFC3339))
	}
	a.State = to
	switch ev {
	case ApprovalApprove, ApprovalDeny:
		a.DecidedAt = now
	case ApprovalConsume:
		a.ConsumedAt = now
	}
	return a, nil
}

// Decide is a person's answer to exactly the digest that was shown. INV-6.
func (a Approval) Decide(approve bool, digest string, by protocol.PrincipalID, reason string, now time.Time) (Approval, error) {
	if digest != a.Digest {
		return a, protocol.Errorf(protocol.CodeConflict,
			"approval %s is for %s, not for %s: look at it again with `bivouac approvals` before you decide", a.ID, a.Digest, digest)
	}
	ev := ApprovalDeny
	if approve {
		ev = ApprovalApprove
	}
	next, err := a.Step(ev, now)
	if err != nil {
		return a, err
	}
	next.DecidedBy, next.Reason = by, reason
	return next, nil
}

// Consume gives the approval to one new action whose subject has the same
// digest. The store's constraint makes it the only one. INV-6.
func (a Approval) Consume(by protocol.ActionID, digest string, now time.Time) (Approval, error) {
	if digest != a.Digest {
		return a, protocol.Errorf(protocol.CodeConflict,
			"approval %s is for %s, and the action is now %s: it is not carried out", a.ID, a.Digest, digest)
	}
	next, err := a.Step(ApprovalConsume, now)
	if err != nil {
		return a, err
	}
	next.ConsumedBy = by
	return next, nil
}

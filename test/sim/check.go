package sim

import (
	"bytes"
	"strings"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// check holds a reading against the one before and against the outside world.
func (s *Sim) check(now *reading) {
	moved := s.checkSessions(now)
	moved = s.checkTurns(now) || moved
	moved = s.checkActions(now) || moved
	moved = s.checkAttempts(now) || moved
	moved = s.checkApprovals(now) || moved
	if s.late != "" && moved { // INV-3
		s.violate("INV-3: late records of %s moved something", s.late)
	}
	s.checkEvents(now)
	s.checkBudgets(now)
	s.checkDebt(now)
}

// checkDebt: the slice of an ended turn is closed, or somebody was asked to close
// it in the transaction that ended the turn. INV-18.
func (s *Sim) checkDebt(now *reading) {
	for _, t := range now.turns {
		for _, sl := range now.slices[t.ID] {
			if t.State.Terminal() && sl.ClosedAt.IsZero() && !now.asked(sl.ID.String()) {
				s.violate("INV-18: turn %s has ended, slice %s is open, and no cleanup was asked for", t.ID, sl.ID)
			}
		}
	}
	for _, a := range now.attempts {
		if was := s.shadow.attempts[a.ID]; was.State.Held() && a.State.Terminal() && endedByServer(a) && !now.asked(a.ID.String()) {
			s.violate("INV-18: attempt %s was ended as %s, and no cleanup of it was asked for", a.ID, a.State)
		}
	}
}

// endedByServer reports an attempt of a turn whose end its machine may not know of.
func endedByServer(a execution.Attempt) bool {
	switch a.State {
	case execution.AttemptCancelled:
		return a.Message == "its turn ended"
	case execution.AttemptInterrupted:
		return strings.Contains(a.Message, "not renewed its lease for") || strings.Contains(a.Message, "revoked or removed")
	}
	return false
}

func (s *Sim) checkSessions(now *reading) (moved bool) {
	waiting := map[protocol.SessionID]int{}
	for _, t := range now.turns {
		if t.State == session.Queued {
			waiting[t.Session]++
		}
	}
	for _, v := range now.sessions {
		if v.Queued != waiting[v.ID] {
			s.violate("INV-1: session %s counts %d turns that wait, and %d do", v.ID, v.Queued, waiting[v.ID])
		}
		was, known := s.shadow.sessions[v.ID]
		moved = moved || known && was.State != v.State
		if known && was.State.Terminal() && was.State != v.State {
			s.violate("INV-2: session %s was %s and is %s", v.ID, was.State, v.State)
		}
	}
	return moved
}

// checkTurns: INV-1, INV-2, INV-3, INV-7.
func (s *Sim) checkTurns(now *reading) (moved bool) {
	active := map[protocol.SessionID]protocol.TurnID{}
	for _, t := range now.turns {
		was, known := s.shadow.turns[t.ID]
		if !known || was.State != t.State {
			s.note("turn %s is %s %s", t.ID, t.State, t.Reason)
			moved = moved || known
		}
		switch {
		case known && was.State.Terminal() && (was.State != t.State || was.Reason != t.Reason || was.Answer != t.Answer):
			s.violate("INV-2: turn %s ended as %s{%s} and is %s{%s}", t.ID, was.State, was.Reason, t.State, t.Reason)
		case known && t.OwnerFence < was.OwnerFence:
			s.violate("INV-3: the owner fence of turn %s fell from %s to %s", t.ID, was.OwnerFence, t.OwnerFence)
		}
		if t.State.Active() {
			if other, taken := active[t.Session]; taken {
				s.violate("INV-1: turns %s and %s of one session are active", other, t.ID)
			}
			active[t.Session] = t.ID
		}
		if was.ActivatedAt.IsZero() && !t.ActivatedAt.IsZero() {
			s.inOrder(now, t)
		}
		if t.State == session.WaitingApproval {
			s.waitsForNothing(now, t)
		}
	}
	return moved
}

// inOrder: activation follows enqueue order. INV-1.
func (s *Sim) inOrder(now *reading, t session.Turn) {
	for _, o := range now.turns {
		if o.Session == t.Session && o.N < t.N && !o.State.Terminal() {
			s.violate("INV-1: turn %s was activated before %s, which is %s", t.ID, o.ID, o.State)
		}
	}
}

// waitsForNothing: a person's answer is waited for without lease, capability or
// op. INV-7.
func (s *Sim) waitsForNothing(now *reading, t session.Turn) {
	if t.Slice != "" {
		s.violate("INV-7: turn %s waits for an approval with the budget slice %s", t.ID, t.Slice)
	}
	if t.ModelCall != "" {
		s.violate("INV-7: turn %s waits for an approval with model call %s in flight", t.ID, t.ModelCall)
	}
	for _, a := range now.actions {
		for _, h := range s.hosts {
			if a.Turn == t.ID && h.up && h.ops.awaits("invoke/", a.ID.String()) && !a.State.Terminal() {
				s.violate("INV-7: turn %s waits for an approval while %s is under way at %s", t.ID, a.ID, h.name)
			}
		}
	}
	if a := s.heldFor(now, t.ID); a.ID != "" && t.Placement == session.PlacementService {
		s.violate("INV-7: turn %s waits for an approval and its attempt %s is %s", t.ID, a.ID, a.State)
	}
}

// heldFor finds an attempt of a turn that a machine holds. That of a turn which
// ran on the machine was told to end, and may take a moment; until then nothing is
// carried out.
func (s *Sim) heldFor(now *reading, id protocol.TurnID) execution.Attempt {
	for _, a := range now.attempts {
		if a.State.Held() && s.turnOf(now, a) == id {
			return a
		}
	}
	return execution.Attempt{}
}

func (s *Sim) turnOf(now *reading, a execution.Attempt) protocol.TurnID {
	if a.SubjectKind == execution.SubjectTurn {
		return protocol.TurnID(a.SubjectID)
	}
	for _, act := range now.actions {
		if act.ID.String() == a.SubjectID {
			return act.Turn
		}
	}
	return ""
}

// checkActions: INV-2, INV-3, INV-5, INV-6.
func (s *Sim) checkActions(now *reading) (moved bool) {
	for _, a := range now.actions {
		was, known := s.shadow.actions[a.ID]
		if !known || was.State != a.State {
			s.note("action %s (%s of %s) is %s %s", a.ID, a.Tool, a.Turn, a.State, a.Code)
			moved = moved || known
			s.labelAction(a)
		}
		switch {
		case known && was.State.Terminal() && (was.State != a.State || was.Code != a.Code || !bytes.Equal(was.Result, a.Result)):
			s.violate("INV-2: action %s ended as %s %s and is %s %s", a.ID, was.State, was.Code, a.State, a.Code)
		case known && a.Fence < was.Fence:
			s.violate("INV-3: the fence of action %s fell from %s to %s", a.ID, was.Fence, a.Fence)
		case known && (a.IdempotencyKey != was.IdempotencyKey || a.ArgumentsDigest != was.ArgumentsDigest):
			s.violate("INV-5: action %s has another key or other arguments than it was intended with", a.ID)
		case needsApproval[a.Tool] && a.Approval == "" && !a.DispatchedAt.IsZero():
			s.violate("INV-6: %s %s was dispatched without an approval", a.Tool, a.ID)
		}
		s.checkOutcome(a)
	}
	return moved
}

var needsApproval = map[string]bool{"http:send": true, policy.RefWrite: true}

// labelAction lets the server die right after an intent was committed.
func (s *Sim) labelAction(a session.Action) {
	h := s.acting
	switch {
	case a.State != session.Intended:
	case a.Approval != "":
		s.after(0, "", func() { h.reach(fault.ServerApprovalConsumed) })
	default:
		s.after(0, "", func() { h.reach(fault.ServerIntentCommitted) })
	}
}

// checkOutcome: what happened is never said not to have happened, and what is
// said to have happened did. INV-5.
func (s *Sim) checkOutcome(a session.Action) {
	if reads(a) {
		return
	}
	switch happened := s.world.happened(a.ID); a.State {
	case session.Succeeded:
		if !happened {
			s.violate("INV-5: %s %s is %s and never happened", a.Tool, a.ID, a.State)
		}
	case session.ActionFailed, session.Denied, session.ActionCancelled, session.Superseded, session.AwaitingApproval:
		if happened {
			s.violate("INV-5: %s %s is %s and has happened (%s)", a.Tool, a.ID, a.State, a.Evidence)
		}
	}
}

// heldBack: while an unknown outcome is not resolved, its principal's agents do
// nothing to the same thing again. INV-5.
func (s *Sim) heldBack(a session.Action) {
	for _, id := range s.shadow.order {
		for _, b := range s.actionsOf(id) {
			if b.ID != a.ID && b.Principal == a.Principal && b.ResourceKey == a.ResourceKey && b.Unresolved() && b.OutcomeAt.Before(a.DispatchedAt) {
				s.violate("INV-5: %s of action %s happens, and what action %s did to the same thing is not known", a.Tool, a.ID, b.ID)
				return
			}
		}
	}
}

func (s *Sim) checkAttempts(now *reading) (moved bool) {
	for _, a := range now.attempts {
		was, known := s.shadow.attempts[a.ID]
		if !known || was.State != a.State {
			s.note("attempt %s is %s %s", a.ID, a.State, a.Reason)
			moved = moved || known
			s.lapses(a)
			if h := s.acting; a.State == execution.AttemptClaimed {
				s.after(0, "", func() { h.reach(fault.ServerClaimCommitted) })
			}
		}
		switch {
		case known && was.State.Terminal() && (was.State != a.State || was.Reason != a.Reason || was.Message != a.Message):
			s.violate("INV-2: attempt %s ended as %s{%s} and is %s{%s}", a.ID, was.State, was.Reason, a.State, a.Reason)
		case known && a.Fence < was.Fence:
			s.violate("INV-3: the fence of attempt %s fell from %s to %s", a.ID, was.Fence, a.Fence)
		case known && was.BootNonce != "" && (a.BootNonce != was.BootNonce || a.Runner != was.Runner):
			s.violate("INV-14: the claim of attempt %s moved from %s to %s", a.ID, was.BootNonce, a.BootNonce)
		}
	}
	return moved
}

// checkApprovals: INV-2, INV-6.
func (s *Sim) checkApprovals(now *reading) (moved bool) {
	for _, a := range now.approvals {
		was, known := s.shadow.approvals[a.ID]
		if !known || was.State != a.State {
			s.note("approval %s is %s", a.ID, a.State)
			moved = moved || known
		}
		if known && was.State.Terminal() && was.State != a.State {
			s.violate("INV-2: approval %s was %s and is %s", a.ID, was.State, a.State)
		}
		if a.State == session.ApprovalConsumed && was.State != a.State {
			s.checkConsumed(now, a)
		}
	}
	return moved
}

// checkConsumed: once, by exactly what was approved, into a new action under a
// higher fence. INV-6.
func (s *Sim) checkConsumed(now *reading, a session.Approval) {
	var used []session.Action
	var subject session.Action
	for _, act := range now.actions {
		if act.Approval == a.ID {
			used = append(used, act)
		}
		if act.ID == a.Action {
			subject = act
		}
	}
	if yes, decided := s.decisions[a.ID]; !yes && (decided || !s.maybe[a.ID]) {
		s.violate("INV-6: approval %s was consumed and nobody approved it", a.ID)
	}
	if len(used) != 1 || used[0].ID != a.ConsumedBy {
		s.violate("INV-6: approval %s was consumed by %s, and %d actions use it", a.ID, a.ConsumedBy, len(used))
		return
	}
	turn := s.find(now, a.Turn)
	if held := s.heldFor(now, a.Turn); held.ID != "" {
		s.violate("INV-7: approval %s was consumed while attempt %s of its turn is %s", a.ID, held.ID, held.State)
	}
	snap, err := policy.DecodeSnapshot(turn.Snapshot, turn.SnapshotDigest)
	if err != nil {
		s.violate("the snapshot of %s cannot be read: %v", turn.ID, err)
		return
	}
	switch digest := used[0].Subject(snap.DataBoundary, snap.PolicyDigest, a.ExpiresAt).Digest(); {
	case digest != a.Digest:
		s.violate("INV-6: approval %s is for %s and was consumed for %s", a.ID, a.Digest, digest)
	case used[0].Fence <= subject.Fence:
		s.violate("INV-6: action %s consumed approval %s under fence %s, not above %s", used[0].ID, a.ID, used[0].Fence, subject.Fence)
	case subject.State != session.Superseded:
		s.violate("INV-6: the subject %s of the consumed approval %s is %s", subject.ID, a.ID, subject.State)
	}
}

func (s *Sim) find(now *reading, id protocol.TurnID) session.Turn {
	for _, t := range now.turns {
		if t.ID == id {
			return t
		}
	}
	return session.Turn{}
}

package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// restWithin is how long after the faults everything may take to come to rest.
const restWithin = 15 * time.Minute

// heal ends all faults: links work, nobody dies any more, and who is down comes
// back.
func (s *Sim) heal() {
	if !s.enough() && s.putOff < atMostLater {
		s.putOff++
		s.note("too little has happened: %d events, %d faults", s.named, s.faultCount())
		s.moreTrouble()
		s.after(s.plan.heal-s.now(), "faults end", s.heal)
		return
	}
	s.healed = true
	s.note("the faults are over")
	for _, h := range s.hosts {
		s.after(time.Second, "", h.start)
	}
	s.after(time.Second, "", s.broker.start)
	for _, m := range s.machines {
		s.after(2*time.Second, "", m.start)
	}
}

// checkRest ends the run when nothing is left to do, or says what does not end.
func (s *Sim) checkRest() {
	s.after(time.Second, "", s.checkRest)
	if !s.healed {
		return
	}
	unfinished := s.unfinished()
	switch {
	case len(unfinished) == 0:
		s.note("everything is at rest")
		s.over = true
		s.observe()
		s.final()
	case s.now() > s.plan.heal+restWithin:
		s.violate("liveness: %s after the faults this has not ended: %s", restWithin, strings.Join(unfinished, "; "))
	}
}

func (s *Sim) unfinished() (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range s.people {
		if p.open > 0 {
			add("%d prompts of %s were not taken", p.open, p.name)
		}
	}
	h := s.shadow
	for _, id := range h.order {
		if t := h.turns[id]; !t.State.Terminal() {
			add("turn %s is %s", s.shorten(id.String()), t.State)
		}
	}
	for _, id := range h.order {
		out = append(out, s.unfinishedOf(id)...)
	}
	for _, m := range s.machines {
		for _, e := range m.entries {
			if e.work != nil { // a nonce alone holds nothing
				add("%s has %s", m.name, s.shorten(e.id.String()))
			}
		}
	}
	if len(out) == 0 {
		if out = s.debt(); len(out) > 0 { // INV-18
			s.relink()
		}
	}
	return out
}

// relink makes every machine connect once more when nothing but debt is left: of
// an attempt that it lost it says no word but that it does not hold it.
func (s *Sim) relink() {
	for _, m := range s.machines {
		if !m.relinked && m.epoch != 0 {
			m.relinked = true
			m.gone(m.epoch, protocol.Errorf(protocol.CodeUnavailable, "the link is made anew"))
		}
	}
}

// unfinishedOf lists what still works for a turn.
func (s *Sim) unfinishedOf(id protocol.TurnID) (out []string) {
	actions, attempts := 0, 0
	for _, a := range s.shadow.actions {
		if a.Turn == id && !a.State.Terminal() {
			actions++
		}
	}
	for _, a := range s.shadow.attempts {
		if a.SubjectID == id.String() && !a.State.Terminal() {
			attempts++
		}
		if act, ok := s.shadow.actions[protocol.ActionID(a.SubjectID)]; ok && a.SubjectKind == execution.SubjectAction && act.Turn == id && !a.State.Terminal() {
			attempts++
		}
	}
	if actions+attempts > 0 {
		out = append(out, fmt.Sprintf("turn %s has %d open actions and %d open attempts", s.shorten(id.String()), actions, attempts))
	}
	return out
}

// final is what must be true at the end: accepted ⊆ effects ⊆ accepted ∪ unknown
// (INV-5), projections rebuild to the same bytes (INV-8), and no turn had to be
// ended by its wall time.
func (s *Sim) final() {
	if !s.enough() {
		s.violate("the plan falls short: %d events and %d faults, of %d and %d", s.named, s.faultCount(), leastEvents, leastFaults)
	}
	for _, e := range s.world.effects {
		if a := s.shadow.actions[e.action]; a.State != session.Succeeded && a.State != session.ActionUnknown {
			s.violate("INV-5: %s of %s happened, and the action is %s", e.tool, e.action, a.State)
		}
	}
	for _, id := range s.shadow.order {
		t := s.shadow.turns[id]
		if t.Reason == loop.LimitWall && !s.clockSet(t) {
			s.violate("liveness: turn %s ended only by its wall time", id)
		}
		s.checkProjection(t)
	}
	for _, a := range s.shadow.actions {
		if t := s.shadow.turns[a.Turn]; a.EndsTurn() && t.State == session.Completed {
			s.violate("INV-5: turn %s is %s with the unknown outcome of %s", t.ID, t.State, a.ID)
		}
	}
}

// clockSet reports a turn in whose time the clocks were set.
func (s *Sim) clockSet(t session.Turn) bool {
	return slices.ContainsFunc(s.jumps, func(at time.Time) bool { return !at.Before(t.ActivatedAt) && !t.EndedAt.Before(at) })
}

// checkProjection rebuilds what an ended turn added to the conversation. INV-8.
func (s *Sim) checkProjection(t session.Turn) {
	var events []session.Stored
	var projected [][]byte
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) (err error) {
		if events, err = tx.EventsOfTurn(t.ID, 0, 0); err != nil {
			return err
		}
		projected, err = tx.Projection(t.Session)
		return err
	})
	if err != nil {
		s.violate("the store cannot be read: %v", err)
		return
	}
	messages, err := session.Project(ending(events))
	if err != nil {
		s.violate("INV-8: the projection of %s does not rebuild: %v", t.ID, err)
		return
	}
	b, err := session.EncodeMessages(messages)
	if err != nil {
		s.violate("INV-8: the projection of %s does not encode: %v", t.ID, err)
		return
	}
	found := len(b) == 0
	for _, p := range projected {
		found = found || bytes.Equal(p, b)
	}
	if !found {
		s.violate("INV-8: the projection of %s does not rebuild to the same bytes", t.ID)
	}
	s.checkTold(t, messages)
}

// ending are the events up to the end of the turn: what comes later is evidence.
func ending(events []session.Stored) []session.Stored {
	for i, e := range events {
		if e.Type == session.TurnEnded {
			return events[:i+1]
		}
	}
	return events
}

// told is what a conversation may say of an action that ended so. An outcome that
// was not known when the turn ended is unknown, never a failure (INV-5).
var told = map[session.ActionState]runtimev1.ResultStatus{
	session.Succeeded: runtimev1.ResultStatus_RESULT_STATUS_OK, session.ActionFailed: runtimev1.ResultStatus_RESULT_STATUS_FAILED,
	session.Denied: runtimev1.ResultStatus_RESULT_STATUS_DENIED, session.ActionUnknown: runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN,
	session.ActionCancelled: runtimev1.ResultStatus_RESULT_STATUS_SKIPPED,
}

// checkTold: the conversation of an ended turn says of every call what was known
// of it, and of one that was under way that it is unknown. INV-5.
func (s *Sim) checkTold(t session.Turn, messages []*runtimev1.Message) {
	for _, a := range s.actionsOf(t.ID) {
		want, ended := told[a.State]
		switch {
		case !ended || a.Tool == policy.RefDigest:
			continue // another action answers the call
		case a.State == session.ActionCancelled && a.DispatchedAt.IsZero() && t.Placement == session.PlacementRunner:
			continue // its question was lost with the attempt that asked it, and so was the call
		case reads(a) && t.Attempts > 1:
			continue // a resumed attempt may read again: the last answer is told
		case a.OutcomeAt.After(t.EndedAt) && !a.DispatchedAt.IsZero():
			want = runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN
		case a.OutcomeAt.Equal(t.EndedAt):
			continue // its end and the turn's are one: it may be told either way
		}
		if !says(messages, a.CallID, want) {
			s.violate("INV-5: action %s is %s, and the conversation of %s does not say %s of its call %s", a.ID, a.State, t.ID, want, a.CallID)
		}
	}
}

func says(messages []*runtimev1.Message, call string, want runtimev1.ResultStatus) bool {
	for _, m := range messages {
		for _, b := range m.Blocks {
			if r := b.GetToolResult(); r != nil && r.CallId == call && r.Status == want {
				return true
			}
		}
	}
	return false
}

// actionsOf a turn, in order.
func (s *Sim) actionsOf(id protocol.TurnID) (out []session.Action) {
	for _, a := range s.shadow.actions {
		if a.Turn == id {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b session.Action) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return out
}

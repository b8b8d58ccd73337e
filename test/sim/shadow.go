package sim

import (
	"context"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// observed is what the run saw of the system from outside it.
type observed struct {
	violation string
	labels    map[fault.Label]int
	killed    map[fault.Label]int
	shadow    *shadow
	late      protocol.AttemptID                   // whose late records this step brought
	claims    map[protocol.AttemptID]string        // who passed the claim
	messages  map[string]admission                 // by session and message id
	maybe     map[protocol.ApprovalID]bool         // approved, or not: the reply of the commit was lost
	decisions map[protocol.ApprovalID]bool         // as the server took them
	drawn     map[protocol.TurnID]int64            // at the broker, over all its boots
	granted   map[protocol.AttemptID]time.Duration // when a server last gave a lease its durations
	fallen    fallen
	// of the owner of a machine: what they were shown, by its digest, and what their
	// machine took from them.
	shown      map[string]subject
	words      map[protocol.AttemptID]word
	lastDigest string
	owned      map[string]int // what came of it
}

type admission struct {
	turn protocol.TurnID
	text string
}

func newObserved() observed {
	return observed{labels: map[fault.Label]int{}, killed: map[fault.Label]int{}, shadow: newShadow(),
		claims: map[protocol.AttemptID]string{}, messages: map[string]admission{}, decisions: map[protocol.ApprovalID]bool{}, maybe: map[protocol.ApprovalID]bool{},
		drawn: map[protocol.TurnID]int64{}, granted: map[protocol.AttemptID]time.Duration{}, fallen: fallen{by: map[fallKey]fall{}},
		shown: map[string]subject{}, words: map[protocol.AttemptID]word{}, owned: map[string]int{}}
}

// shadow is the store as it was after the last step.
type shadow struct {
	sessions  map[protocol.SessionID]session.Session
	turns     map[protocol.TurnID]session.Turn
	actions   map[protocol.ActionID]session.Action
	attempts  map[protocol.AttemptID]execution.Attempt
	approvals map[protocol.ApprovalID]session.Approval
	slices    map[protocol.TurnID][]policy.Slice
	chains    map[protocol.SessionID]chain
	budgets   map[protocol.TurnID]int64
	order     []protocol.TurnID // oldest first
	parts     map[protocol.TurnID]part
	looks     int
}

// part is what belongs to one turn. It rests when nothing of it can move but by a
// broken rule: then it is read again at every few looks, whenever late records
// arrive, and at the end, so that a broken rule shows a moment later.
type part struct {
	actions  []session.Action
	attempts []execution.Attempt
	slices   []policy.Slice
	rests    bool
}

// restingLook is how often the parts at rest are read.
const restingLook = 8

func (p part) resting(t session.Turn) bool {
	rests := t.State.Terminal()
	for _, a := range p.actions {
		rests = rests && a.State.Terminal() && (a.State != session.ActionUnknown || !a.Unresolved())
	}
	for _, a := range p.attempts {
		rests = rests && a.State.Terminal()
	}
	for _, s := range p.slices {
		rests = rests && !s.ClosedAt.IsZero()
	}
	return rests
}

// chain is the end of a session's events.
type chain struct {
	seq  int64
	hash []byte
}

func newShadow() *shadow {
	return &shadow{
		sessions: map[protocol.SessionID]session.Session{}, turns: map[protocol.TurnID]session.Turn{},
		actions: map[protocol.ActionID]session.Action{}, attempts: map[protocol.AttemptID]execution.Attempt{},
		approvals: map[protocol.ApprovalID]session.Approval{}, slices: map[protocol.TurnID][]policy.Slice{},
		chains: map[protocol.SessionID]chain{}, budgets: map[protocol.TurnID]int64{}, parts: map[protocol.TurnID]part{},
	}
}

// observe reads what is committed now, in one transaction, and holds it against
// what was before.
func (s *Sim) observe() {
	var now *reading
	s.shadow.looks++
	all := s.late != "" || s.over || s.shadow.looks%restingLook == 0
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) (err error) {
		now, err = read(tx, s.shadow, all)
		return err
	})
	if err != nil {
		s.violate("the store cannot be read: %v", err)
		return
	}
	s.check(now)
	s.shadow.take(now)
}

// reading is the store in one moment, in a stable order.
type reading struct {
	sessions  []session.Session
	turns     []session.Turn
	actions   []session.Action
	attempts  []execution.Attempt
	approvals []session.Approval
	slices    map[protocol.TurnID][]policy.Slice
	parts     map[protocol.TurnID]part
	events    []session.Stored
	cleanups  map[string]bool // subjects of those that are open
}

// asked reports a subject of which an open cleanup speaks.
func (r *reading) asked(subject string) bool { return r.cleanups[subject] }

func read(tx *store.Tx, was *shadow, all bool) (r *reading, err error) {
	r = &reading{slices: map[protocol.TurnID][]policy.Slice{}, parts: map[protocol.TurnID]part{}, cleanups: map[string]bool{}}
	if r.sessions, _, err = tx.Sessions(0, ""); err != nil {
		return nil, err
	}
	newest, _, err := tx.Turns("", 0, "")
	if err != nil {
		return nil, err
	}
	for i := len(newest) - 1; i >= 0; i-- {
		r.turns = append(r.turns, newest[i])
	}
	for _, t := range r.turns {
		p := was.parts[t.ID]
		if all || !p.rests {
			if p, err = readPart(tx, t); err != nil {
				return nil, err
			}
		}
		r.add(t.ID, p)
	}
	if r.approvals, err = tx.Approvals(true); err != nil {
		return nil, err
	}
	open, _, err := tx.Cleanups(0, "")
	if err != nil {
		return nil, err
	}
	for _, c := range open {
		r.cleanups[c.Subject] = true
	}
	for _, ses := range r.sessions {
		news, err := tx.Events(ses.ID, was.chains[ses.ID].seq, 0)
		if err != nil {
			return nil, err
		}
		r.events = append(r.events, news...)
	}
	return r, nil
}

// readPart reads what belongs to one turn.
func readPart(tx *store.Tx, t session.Turn) (p part, err error) {
	if t.State == session.Queued {
		return p, nil
	}
	if p.actions, err = tx.ActionsOfTurn(t.ID); err != nil {
		return p, err
	}
	if p.slices, err = tx.SlicesOfTurn(t.ID); err != nil {
		return p, err
	}
	if p.attempts, err = tx.AttemptsOfSubject(execution.SubjectTurn, t.ID.String()); err != nil {
		return p, err
	}
	for _, a := range p.actions {
		if a.Attempt == "" {
			continue
		}
		at, err := tx.Attempt(a.Attempt)
		if err != nil {
			return p, err
		}
		p.attempts = append(p.attempts, at)
	}
	p.rests = p.resting(t)
	return p, nil
}

func (r *reading) add(id protocol.TurnID, p part) {
	r.parts[id] = p
	r.actions = append(r.actions, p.actions...)
	r.attempts = append(r.attempts, p.attempts...)
	if len(p.slices) > 0 {
		r.slices[id] = p.slices
	}
}

// take makes a reading the past.
func (h *shadow) take(r *reading) {
	h.order = h.order[:0]
	for _, v := range r.sessions {
		h.sessions[v.ID] = v
	}
	for _, v := range r.turns {
		h.turns[v.ID] = v
		h.order = append(h.order, v.ID)
	}
	for _, v := range r.actions {
		h.actions[v.ID] = v
	}
	for _, v := range r.attempts {
		h.attempts[v.ID] = v
	}
	for _, v := range r.approvals {
		h.approvals[v.ID] = v
	}
	for id, v := range r.slices {
		h.slices[id] = v
	}
	h.parts = r.parts
	for _, e := range r.events {
		h.chains[e.Session] = chain{e.Seq, e.Hash}
	}
}

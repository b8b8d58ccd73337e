package sim

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/capability"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// claimed notes who passed the claim of an attempt. INV-14.
func (s *Sim) claimed(id protocol.AttemptID, m *machine, nonce string, terms *runnerv1.LeaseTerms) {
	who := m.name + " " + nonce
	if first, known := s.claims[id]; known && first != who {
		s.violate("INV-14: %s passes the claim of %s, which %s holds", who, id, first)
	}
	s.claims[id] = who
	s.note("%s passes the claim of %s under fence %s", who, id, protocol.Fence(terms.Fence))
}

// reports notes that records arrive, so that late ones can be seen to change
// nothing. INV-3.
func (s *Sim) reports(id protocol.AttemptID, f protocol.Fence) {
	a, known := s.shadow.attempts[id]
	if known && (a.Fence != f || !a.State.Held()) {
		s.late = id
		s.note("records of %s are late: it is %s", id, a.State)
	}
}

// admission: a duplicate message returns its turn. INV-15.
func (s *Sim) admission(id protocol.SessionID, message, text string, a engine.Admission) {
	key := id.String() + "/" + message
	was, known := s.messages[key]
	switch {
	case !known:
		s.messages[key] = admission{a.Turn.ID, text}
		s.note("message %s is turn %s", message, a.Turn.ID)
	case was.turn != a.Turn.ID:
		s.violate("INV-15: message %s of %s is turn %s and turn %s", message, id, was.turn, a.Turn.ID)
	case was.text != text:
		s.violate("INV-15: message %s of %s was taken with two prompts", message, id)
	}
}

// decision: the first one counts.
func (s *Sim) decision(d engine.ApprovalDecision, a session.Approval) {
	if was, known := s.decisions[d.Approval]; known && was != d.Approve {
		s.violate("INV-6: approval %s was decided both ways", d.Approval)
	}
	if d.Digest != a.Digest {
		s.violate("INV-6: a decision about %s was taken for %s", d.Digest, a.ID)
	}
	s.decisions[d.Approval] = d.Approve
}

func (s *Sim) recreated(i policy.Instance) {
	s.instances[i.ID] = raise{i.Generation, s.now()}
	s.note("instance %s is of generation %d now", i.ID, i.Generation)
}

// admitted: a broker that had time to hear of it admits nothing of an earlier
// generation. INV-13, INV-16.
func (s *Sim) admitted(c capability.Claims) {
	r, raised := s.instances[c.Instance]
	if raised && c.Generation < r.generation && s.now()-r.at > feedLimit+time.Second {
		s.violate("INV-16: a capability of generation %d was admitted %s after generation %d", c.Generation, s.now()-r.at, r.generation)
	}
}

// debt is what is not cleaned up. INV-18.
func (s *Sim) debt() (n int) {
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) (err error) {
		n, err = tx.CleanupDebt()
		return err
	})
	if err != nil {
		s.violate("the store cannot be read: %v", err)
	}
	return n
}

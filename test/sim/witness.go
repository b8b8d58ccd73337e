package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/capability"
	"bivouac/server/engine"
	"bivouac/server/execution"
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
	s.leased(id)
	s.note("%s passes the claim of %s under fence %s", who, id, protocol.Fence(terms.Fence))
}

// leased notes that a server gave an attempt its durations, now.
func (s *Sim) leased(id protocol.AttemptID) { s.granted[id] = s.now() }

// acts: a machine has an effect only within the authority ttl of the last words
// of a server about its lease, whatever clocks say. INV-20.
func (s *Sim) acts(m *machine, id protocol.AttemptID) {
	a, known := s.shadow.attempts[id]
	if since := s.now() - s.granted[id]; known && since >= a.AuthorityTTL {
		s.violate("INV-20: %s acts for %s, of which a server spoke %s ago", m.name, id, since)
	}
}

// lapses: a server calls a lease lapsed or over only when as much time has passed
// since it was given, whatever clocks say. INV-20.
func (s *Sim) lapses(a execution.Attempt) {
	since := s.now() - s.granted[a.ID]
	switch {
	case a.State == execution.AttemptSuspect && since < a.AuthorityTTL:
		s.violate("INV-20: attempt %s is %s %s after its lease was renewed", a.ID, a.State, since)
	case a.State == execution.AttemptInterrupted && strings.Contains(a.Message, "not renewed its lease for") && since < a.Retention+execution.LeaseGuard:
		s.violate("INV-20: attempt %s is %s %s after its lease was renewed", a.ID, a.State, since)
	}
}

// reports notes that records arrive, so that late ones can be seen to change
// nothing. INV-3.
func (s *Sim) reports(id protocol.AttemptID, f protocol.Fence) {
	late := func() bool {
		a, known := s.shadow.attempts[id]
		return known && (a.Fence != f || !a.State.Held())
	}
	if !late() {
		return
	}
	s.observe() // what moved before is not theirs
	if a := s.shadow.attempts[id]; late() {
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
	}
	if a.Turn.Prompt != text {
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

// signing is a server's signer, with a witness beside it.
type signing struct {
	s *Sim
	h *host
}

// Sign is asked for everything that a server mints.
func (w *signing) Sign(c capability.Claims) (string, error) {
	w.s.sawFloors()
	w.s.minted(w.h, c)
	w.s.narrow(c)
	return w.s.trust.signer.Sign(c)
}

// stand is one thing that a capability rests on.
type stand struct {
	rule  string
	kind  policy.FloorKind
	id    string
	value int64
}

func standsOn(c capability.Claims) []stand {
	return []stand{
		{"INV-13", policy.FloorGrant, c.Grant.String(), 0},
		{"INV-13", policy.FloorPrincipal, c.Principal.String(), 0},
		{"INV-13", policy.FloorRunner, c.Presenter, 0},
		{"INV-16", policy.FloorInstance, c.Instance.String(), c.Generation},
	}
}

// minted: the server that recorded a revocation mints nothing under it from that
// commit on; another one hears of it by its next look, or is too old to speak.
// INV-13, INV-16.
func (s *Sim) minted(h *host, c capability.Claims) {
	for _, on := range standsOn(c) {
		f, below := s.fallen.below(on.kind, on.id, on.value)
		if age := s.now() - f.at; below && (f.by == h || age > s.plan.poll+s.plan.replicaTTL+time.Second) {
			s.violate("%s: %s mints for %s %s after %s took %s back", on.rule, h.name, c.Turn, age, f.by.name, on.id)
		}
	}
}

// admitted: a broker admits nothing later than its feed may be old. INV-13, INV-16.
func (s *Sim) admitted(c capability.Claims) {
	for _, on := range standsOn(c) {
		f, below := s.fallen.below(on.kind, on.id, on.value)
		if age := s.now() - f.at; below && age > feedLimit {
			s.violate("%s: a capability for %s is admitted %s after %s was taken back", on.rule, c.Turn, age, on.id)
		}
	}
}

// narrow: a capability says nothing that its turn's snapshot does not. INV-10.
func (s *Sim) narrow(c capability.Claims) {
	var t session.Turn
	var a session.Action
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) (err error) {
		if t, err = tx.Turn(c.Turn); err == nil && c.Action != "" {
			a, err = tx.Action(c.Action)
		}
		return err
	})
	if err != nil {
		s.violate("INV-4: a capability is made for turn %s and action %s, which is not committed: %v", c.Turn, c.Action, err)
		return
	}
	snap, err := policy.DecodeSnapshot(t.Snapshot, t.SnapshotDigest)
	if err != nil {
		s.violate("the snapshot of %s cannot be read: %v", t.ID, err)
		return
	}
	wide := func(format string, args ...any) {
		s.violate("INV-10: a capability for "+t.ID.String()+" "+format, args...)
	}
	route := func(m string) bool { return m != snap.Agent.Model.Route }
	switch {
	case c.Tenant != t.Tenant || c.Principal != t.Principal || c.Agent != snap.Agent.Name || c.Session != t.Session:
		wide("names %s of %s", c.Principal, c.Tenant)
	case slices.ContainsFunc(c.Models, route):
		wide("allows the routes %q, and its agent has %q", c.Models, snap.Agent.Model.Route)
	case c.Action == "" && len(c.Tools)+len(c.Destinations) > 0:
		wide("is for no action and allows the tools %q", c.Tools)
	case c.Action != "" && (!slices.Equal(c.Tools, []string{a.Tool}) || !slices.Equal(c.Destinations, []string{a.Destination}) || len(c.Models) > 0):
		wide("is for %s and allows %q at %q, models %q", a.Tool, c.Tools, c.Destinations, c.Models)
	case c.Action != "" && c.ArgsDigest != a.ArgumentsDigest:
		wide("is for other arguments than those of %s", a.ID)
	case c.Attempt == "" && c.Fence > t.OwnerFence:
		wide("is of fence %s, and the turn is at %s", c.Fence, t.OwnerFence)
	case c.ExpiresAt.Sub(c.IssuedAt) > capability.MaxTTL:
		wide("lives for %s", c.ExpiresAt.Sub(c.IssuedAt))
	case c.SliceCeiling > snap.Agent.Limits.MaxCostMicroUSD:
		s.violate("INV-19: a capability for %s allows %d of a budget of %d", t.ID, c.SliceCeiling, snap.Agent.Limits.MaxCostMicroUSD)
	case c.Generation != snap.Generation:
		s.violate("INV-16: a capability for %s is of generation %d, and the turn began in %d", t.ID, c.Generation, snap.Generation)
	case t.State == session.WaitingApproval && c.Slice != "":
		s.violate("INV-7: a capability is made for %s, which waits for an approval", t.ID)
	}
}

// debt is what is not cleaned up, each with its evidence. INV-18.
func (s *Sim) debt() (open []string) {
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) error {
		all, _, err := tx.Cleanups(0, "")
		for _, c := range all {
			open = append(open, s.shorten(c.Kind+" "+c.Subject+" ("+c.Evidence+")"))
		}
		return err
	})
	if err != nil {
		s.violate("the store cannot be read: %v", err)
	}
	return open
}

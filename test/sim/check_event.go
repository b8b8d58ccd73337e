package sim

import (
	"bytes"
	"crypto/sha256"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// checkEvents: gapless and chained (INV-8), and unknown is called unknown (INV-5).
func (s *Sim) checkEvents(now *reading) {
	ends := map[protocol.SessionID]chain{}
	for _, e := range now.events {
		end, seen := ends[e.Session]
		if !seen {
			end = s.shadow.chains[e.Session]
		}
		sum := sha256.Sum256(append(bytes.Clone(e.PrevHash), e.Bytes...))
		if e.Seq != end.seq+1 || !bytes.Equal(e.PrevHash, end.hash) || !bytes.Equal(e.Hash, sum[:]) {
			s.violate("INV-8: event %d of session %s does not follow on event %d", e.Seq, e.Session, end.seq)
			return
		}
		ends[e.Session] = chain{e.Seq, e.Hash}
		if e.Type == session.ToolFinished && e.Action != "" {
			s.checkShown(now, e)
		}
		if e.Type == session.OwnerAsked || e.Type == session.OwnerDecided {
			s.checkOwner(e)
		}
	}
}

// checkShown: an unknown outcome is shown as unknown, never as a failure. INV-5.
func (s *Sim) checkShown(now *reading, e session.Stored) {
	for _, a := range now.actions {
		if a.ID == e.Action && a.State == session.ActionUnknown && e.Data["status"] != "unknown" {
			s.violate("INV-5: the unknown outcome of %s is shown as %q", a.ID, e.Data["status"])
		}
	}
}

// checkBudgets: reserved plus spent never exceeds the budget. INV-19.
func (s *Sim) checkBudgets(now *reading) {
	for _, t := range now.turns {
		all := now.slices[t.ID]
		if len(all) == 0 {
			continue
		}
		budget, known := s.shadow.budgets[t.ID]
		if !known {
			snap, err := policy.DecodeSnapshot(t.Snapshot, t.SnapshotDigest)
			if err != nil {
				s.violate("the snapshot of %s cannot be read: %v", t.ID, err)
				return
			}
			budget = snap.Agent.Limits.MaxCostMicroUSD
			s.shadow.budgets[t.ID] = budget
		}
		var sum int64
		for _, sl := range all {
			if sl.ClosedAt.IsZero() {
				sum += max(sl.CeilingMicroUSD, sl.DrawnMicroUSD)
			} else {
				sum += sl.DrawnMicroUSD
			}
		}
		if sum > budget || s.drawn[t.ID] > budget {
			s.violate("INV-19: turn %s has %d reserved or spent and %d drawn, of a budget of %d", t.ID, sum, s.drawn[t.ID], budget)
		}
	}
}

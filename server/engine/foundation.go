package engine

import (
	"fmt"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// foundation is an authority that conversations stand on, and why they end when it
// is taken back.
type foundation struct {
	owner store.Caller
	grant *policy.Grant // nil: the owner, and with it every session
	why   *taken
}

func onGrant(g policy.Grant) foundation {
	return foundation{store.AsPrincipal(g.Tenant, g.Principal, false), &g, grantRevoked(g.ID)}
}

// event is what a session's record says of its end.
func (f foundation) event() map[string]string {
	told := map[string]string{"reason": f.why.reason, "message": f.why.message}
	if f.grant != nil {
		told["grant"] = f.grant.ID.String()
	}
	return told
}

// carries picks the sessions that are not over and stand on it.
func (f foundation) carries(tx *store.Tx, page []session.Session) (under []protocol.SessionID, err error) {
	for _, s := range page {
		if s.State.Terminal() {
			continue
		}
		stands := f.grant == nil
		if !stands && s.Agent == f.grant.Agent {
			if stands, err = ranUnder(tx, s.ID, *f.grant); err != nil {
				return nil, err
			}
		}
		if stands {
			under = append(under, s.ID)
		}
	}
	return under, nil
}

// ranUnder reports a session whose last turn before the revocation stood on the
// grant. A session without a turn stands on none, and one that has gone on under
// another stands on that. Turns that were activated since do not change the answer,
// so that a crash or another replica in between does not.
func ranUnder(tx *store.Tx, id protocol.SessionID, g policy.Grant) (bool, error) {
	const few = 16 // nearly always the first decides
	for cursor := ""; ; {
		page, next, err := tx.Turns(id, few, cursor) // newest first
		if err != nil {
			return false, err
		}
		for _, t := range page {
			if len(t.Snapshot) == 0 {
				continue // never activated
			}
			snap, err := policy.DecodeSnapshot(t.Snapshot, t.SnapshotDigest)
			if err != nil {
				return false, err
			}
			if snap.Grant == g.ID {
				return true, nil
			}
			if !t.ActivatedAt.After(g.RevokedAt) {
				return false, nil
			}
		}
		if cursor = next; cursor == "" {
			return false, nil
		}
	}
}

// Ended is what ended with a grant.
type Ended struct {
	Sessions []string `json:"sessions,omitempty"`
	Turns    []string `json:"turns,omitempty"`
	Attempts []string `json:"attempts,omitempty"`
}

// String names all of it.
func (e Ended) String() string {
	var parts []string
	for _, kind := range []struct {
		one string
		ids []string
	}{{"session", e.Sessions}, {"turn", e.Turns}, {"attempt", e.Attempts}} {
		switch len(kind.ids) {
		case 0:
		case 1:
			parts = append(parts, kind.one+" "+kind.ids[0])
		default:
			parts = append(parts, fmt.Sprintf("%d %ss: %s", len(kind.ids), kind.one, strings.Join(kind.ids, " ")))
		}
	}
	if parts == nil {
		return "nothing stood on it"
	}
	return "ended: " + strings.Join(parts, "; ")
}

// count says how much it is.
func (e Ended) count() string {
	return fmt.Sprintf("ended: sessions %d, turns %d, attempts %d", len(e.Sessions), len(e.Turns), len(e.Attempts))
}

// endedUnder reads from the record what the revocation of a grant ended.
func endedUnder(tx *store.Tx, g policy.Grant) (out Ended, err error) {
	for cursor := ""; ; {
		var page []session.Session
		if page, cursor, err = tx.Sessions(0, cursor); err != nil {
			return out, err
		}
		for _, s := range page {
			if s.State != session.Revoked || s.Agent != g.Agent {
				continue
			}
			if by, err := revokedBy(tx, s); err != nil {
				return out, err
			} else if by != g.ID.String() {
				continue
			}
			out.Sessions = append(out.Sessions, s.ID.String())
			if err := out.turnsOf(tx, s.ID, g); err != nil {
				return out, err
			}
		}
		if cursor == "" {
			return out, nil
		}
	}
}

// revokedBy is the grant that a revoked session ended with; empty: another reason.
// After that event only attempts that ended have theirs.
func revokedBy(tx *store.Tx, s session.Session) (string, error) {
	const tail = 64
	events, err := tx.Events(s.ID, max(0, s.LastSeq-tail), tail)
	for _, e := range events {
		if e.Type == session.SessionRevoked {
			return e.Data["grant"], err
		}
	}
	return "", err
}

// turnsOf adds the turns of a session that ended with the grant, and their attempts.
func (e *Ended) turnsOf(tx *store.Tx, id protocol.SessionID, g policy.Grant) error {
	for cursor := ""; ; {
		page, next, err := tx.Turns(id, 0, cursor)
		if err != nil {
			return err
		}
		for _, t := range page {
			if t.Reason != reasonGrant || t.EndedAt.Before(g.RevokedAt) {
				continue
			}
			e.Turns = append(e.Turns, t.ID.String())
			attempts, err := attemptsOf(tx, t)
			if err != nil {
				return err
			}
			for _, a := range attempts {
				if !a.EndedAt.Before(g.RevokedAt) {
					e.Attempts = append(e.Attempts, a.ID.String())
				}
			}
		}
		if cursor = next; cursor == "" {
			return nil
		}
	}
}

// attemptsOf a turn and of its device actions.
func attemptsOf(tx *store.Tx, t session.Turn) ([]execution.Attempt, error) {
	out, err := tx.AttemptsOfSubject(execution.SubjectTurn, t.ID.String())
	if err != nil {
		return nil, err
	}
	actions, err := tx.ActionsOfTurn(t.ID)
	if err != nil {
		return nil, err
	}
	for _, a := range actions {
		if a.Attempt == "" {
			continue
		}
		attempt, err := tx.Attempt(a.Attempt)
		if err != nil {
			return nil, err
		}
		out = append(out, attempt)
	}
	return out, nil
}

// explainGrant says what ended with a grant, or that it is in force.
func explainGrant(tx *store.Tx, id protocol.GrantID) (Explanation, error) {
	g, err := tx.Grant(id)
	if err != nil {
		return Explanation{}, err
	}
	if g.RevokedAt.IsZero() {
		return Explanation{State: "ACTIVE", Waited: tx.Now.Sub(g.CreatedAt), WaitingFor: "nothing: it is in force",
			Remedies: []string{"bivouac revoke " + g.ID.String(), "bivouac tools effective --agent " + g.Agent}}.renewed(g), nil
	}
	x := Explanation{State: "REVOKED", Waited: tx.Now.Sub(g.RevokedAt),
		WaitingFor: "nothing: it was revoked at " + g.RevokedAt.UTC().Format(time.RFC3339)}
	if left := g.Pending(); left != "" {
		x.WaitingFor = "a look that shows all of it gone: it was revoked at " + g.RevokedAt.UTC().Format(time.RFC3339) + " and is refused, but " + left
		x.Remedies = []string{"bivouac doctor", "bivouac revoke " + g.ID.String() + "  (probes every layer again)"}
	}
	if tx.Caller().Principal() != g.Principal {
		return x, nil // what ran under it is that person's to see
	}
	ended, err := endedUnder(tx, g)
	x.WaitingFor += "; " + ended.String()
	return x, err
}

// renewed adds what became of the last renewal of a grant's secret part.
func (x Explanation) renewed(g policy.Grant) Explanation {
	switch {
	case g.Rotation != "":
		x.WaitingFor += "; its secret part is being renewed since " + g.RotationAt.UTC().Format(time.RFC3339)
	case !g.RotatedAt.IsZero():
		x.WaitingFor += "; its secret part was renewed at " + g.RotatedAt.UTC().Format(time.RFC3339)
	}
	return x
}

// explainTurnsEnd adds to an attempt that ended with its turn why that did.
func explainTurnsEnd(tx *store.Tx, a execution.Attempt, x *Explanation) error {
	if a.SubjectKind != execution.SubjectTurn || a.Reason != reasonCancelled {
		return nil
	}
	t, err := tx.TurnOfAttempt(a.ID)
	if err == nil && t.Reason != "" {
		x.WaitingFor += ", with " + t.Reason + ": " + t.Message
	}
	return err
}

package engine

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// shownTurn is what an offer shows to a machine whose owner holds a second key over
// turns; nil for any other machine, which learns of a turn by its claim.
func shownTurn(tx *store.Tx, a execution.Attempt, id protocol.RunnerID) (*runnerv1.ShownTurn, error) {
	if a.SubjectKind != execution.SubjectTurn {
		return nil, nil
	}
	r, err := tx.Runner(id)
	if err != nil || !slices.Contains(r.Facts.SecondKeys, secondkey.Turn) {
		return nil, err
	}
	work := new(runnerv1.Work)
	if err := proto.Unmarshal(a.Work, work); err != nil {
		return nil, err
	}
	shown, err := secondkey.ShownOf(work)
	if err != nil {
		return nil, err
	}
	t, err := tx.TurnOfAttempt(a.ID)
	if err != nil {
		return nil, err
	}
	p, err := tx.Principal(t.Principal)
	if err != nil {
		return nil, err
	}
	s, err := tx.Session(t.Session)
	shown.Origin = &runnerv1.WorkOrigin{SessionId: t.Session.String(), TurnId: t.ID.String(), Principal: p.Name, Agent: s.Agent}
	return shown, err
}

// ownerLetIn notes the decision that came with the claim of a turn, as evidence.
func (w *turnTx) ownerLetIn(a execution.Attempt, d *runnerv1.OwnerDecided) {
	if d == nil || a.SubjectKind != execution.SubjectTurn || !a.ClaimedAt.Equal(w.tx.Now) {
		return
	}
	w.event(session.Event{Type: session.OwnerDecided, Attempt: a.ID, Data: decisionSaid(a, d)})
}

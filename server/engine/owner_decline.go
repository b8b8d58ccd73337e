package engine

import (
	"context"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
	"bivouac/server/session"
)

// maxAsked bounds how many owners one turn remembers to have asked; the oldest goes.
const maxAsked = 16

// declinedByOwner notes what a machine says of its owner's second key when it declines
// a turn. What is not about the turn that was offered is not noted. A refusal of an
// owner, or silence, counts as one of a person at the server: by on_denied of the agent
// the turn ends, and over is true, or other machines are asked.
func (e *Engine) declinedByOwner(ctx context.Context, offered execution.Attempt, req *runnerv1.DeclineRequest) (over bool, err error) {
	asked, decided := req.GetOwnerAsked(), req.GetOwnerDecided()
	if offered.SubjectKind != execution.SubjectTurn || asked == nil && decided == nil {
		return false, nil
	}
	err = e.onSeen(ctx, "decline", offered, func(w *turnTx, a execution.Attempt) error {
		over = false
		if a.Runner != offered.Runner || !a.OfferedAt.Equal(offered.OfferedAt) {
			return protocol.Errorf(protocol.CodeConflict, "attempt %s moved on", a.ID)
		}
		bound, err := w.turnDigest(a)
		if err != nil {
			return err
		}
		said := asked.GetDigest()
		if decided != nil {
			said = decided.GetDigest() // it alone is used
		}
		switch {
		case bound == "" || said != bound:
			w.e.cfg.Log.Warn("a machine asks its owner about another turn than it was offered", "attempt", a.ID, "runner", a.Runner)
			return nil
		case decided != nil:
			over, err = w.ownerRefusedTurn(a, decided)
			return err
		}
		return w.ownerAskedTurn(a, asked)
	})
	if lostRace(err) {
		return true, nil // gone elsewhere already
	}
	return over, err
}

// turnDigest is what a decision of the owner of an attempt's machine binds; empty for
// a machine that was not shown the turn.
func (w *turnTx) turnDigest(a execution.Attempt) (string, error) {
	shown, err := shownTurn(w.tx, a, a.Runner)
	if err != nil || shown == nil {
		return "", err
	}
	return secondkey.TurnDigest(a.Runner, &runnerv1.Offer{AttemptId: a.ID.String(), SpecDigest: a.SpecDigest, Turn: shown}), nil
}

// ownerAskedTurn keeps the question, and says once that it is asked.
func (w *turnTx) ownerAskedTurn(a execution.Attempt, asked *runnerv1.OwnerAsked) error {
	left := min(time.Duration(max(0, asked.GetWaitMs()))*time.Millisecond, a.PlacementDeadline.Sub(w.tx.Now))
	q := execution.OwnerAsked{Runner: a.Runner, Digest: asked.GetDigest(), At: w.tx.Now, HeardAt: w.tx.Now, Until: w.tx.Now.Add(left)}
	next := a
	next.Requirements.Asked = slices.Clone(a.Requirements.Asked)
	i := slices.IndexFunc(next.Requirements.Asked, func(o execution.OwnerAsked) bool { return o.Runner == q.Runner && o.Digest == q.Digest })
	if i >= 0 {
		q.At = next.Requirements.Asked[i].At
		next.Requirements.Asked[i] = q
		return w.tx.SaveAttempt(next, a.State, a.Fence)
	}
	next.Requirements.Asked = append(next.Requirements.Asked, q)
	next.Requirements.Asked = next.Requirements.Asked[max(0, len(next.Requirements.Asked)-maxAsked):]
	w.event(session.Event{Type: session.OwnerAsked, Attempt: a.ID, Data: map[string]string{"runner": a.Runner.String(),
		"tool": secondkey.Turn, "digest": q.Digest, "until": q.Until.UTC().Format(time.RFC3339)}})
	return w.tx.SaveAttempt(next, a.State, a.Fence)
}

// ownerRefusedTurn notes a refusal once, and ends the turn where its agent says so.
// What ends a turn is noted also when its question never came, or is forgotten.
func (w *turnTx) ownerRefusedTurn(a execution.Attempt, d *runnerv1.OwnerDecided) (over bool, err error) {
	text := ""
	switch d.GetDecision() {
	case secondkey.Denied:
		text = "The owner of the machine denied this turn. It did not run."
	case secondkey.Expired:
		text = "The owner of the machine did not approve this turn in time. It did not run."
	default:
		return false, nil
	}
	before := len(a.Requirements.Asked)
	next := a
	next.Requirements.Asked = slices.DeleteFunc(slices.Clone(a.Requirements.Asked), func(o execution.OwnerAsked) bool { return o.Runner == a.Runner })
	first := len(next.Requirements.Asked) < before
	ends, err := w.denialEnds()
	if err != nil {
		return false, err
	}
	ends = ends && w.turn.State.Active()
	if first || ends {
		w.event(session.Event{Type: session.OwnerDecided, Attempt: a.ID, Data: decisionSaid(a, d)})
	}
	if first {
		if err := w.tx.SaveAttempt(next, a.State, a.Fence); err != nil {
			return false, err
		}
	}
	if !ends {
		return false, nil
	}
	if r := machineWords(d.GetReason()); r != "" {
		text += " Their reason: " + r
	}
	return true, w.endFailed(reasonApprovalDenied, text)
}

// ownerRefusedAction ends the turn of an action that the owner of its machine denied,
// or did not approve in time, where its agent says so: as for a person at the server.
func (w *turnTx) ownerRefusedAction(at execution.Attempt, a session.Action, r *runnerv1.Result) (over bool, err error) {
	if r.GetStatus() != protocol.ResultDenied || a.State.Terminal() || !w.turn.State.Active() {
		return false, nil
	}
	key, err := ownerKeyOf(w.tx, at, 0)
	if err != nil || !key.refused() {
		return false, err
	}
	if ends, err := w.denialEnds(); err != nil || !ends {
		return false, err
	}
	return true, w.endDenied(a, r.GetCode(), machineWords(r.GetMessage()))
}

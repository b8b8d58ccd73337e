package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// OwnerQuestion is what waits for the owner of a machine, as everybody at the server
// may see it who may see the work. It is decided on that machine alone.
type OwnerQuestion struct {
	Attempt protocol.AttemptID
	Turn    protocol.TurnID
	Session protocol.SessionID
	Runner  protocol.RunnerID
	// Machine is its name; the id, where the caller may not see it.
	Machine string
	// Work is the device action, or secondkey.Turn.
	Work      string
	Arguments string
	Digest    string
	AskedAt   time.Time
	Until     time.Time
	// Bound says whose word Until is.
	Bound string
}

// Commands that decide it, on the machine.
func (q OwnerQuestion) Commands() (approve, deny string) {
	return "bivouac-edge approve " + q.Attempt.String(), "bivouac-edge deny " + q.Attempt.String()
}

// sentence says for whom it waits, since when and until when.
func (q OwnerQuestion) sentence() string {
	over := "it"
	if q.Work == secondkey.Turn {
		over = "turns"
	}
	return fmt.Sprintf("the owner of machine %q, who holds a second key over %s, until %s (%s; asked at %s)",
		q.Machine, over, q.Until.UTC().Format(time.RFC3339), q.Bound, q.AskedAt.UTC().Format(time.RFC3339))
}

// OwnerQuestions are those of the caller's work that wait for the owner of a machine,
// oldest work first.
func (e *Engine) OwnerQuestions(ctx context.Context, c store.Caller) (out []OwnerQuestion, err error) {
	err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		out = nil
		waiting, err := tx.AttemptsIn(store.All, execution.AttemptQueued, execution.AttemptOffered, execution.AttemptClaimed,
			execution.AttemptRunning, execution.AttemptSuspect)
		if err != nil {
			return err
		}
		for _, a := range waiting {
			asked, err := ownerQuestions(tx, a)
			if err != nil {
				return err
			}
			out = append(out, asked...)
		}
		return nil
	})
	return out, err
}

// ownerQuestions of one attempt: one of the action that a machine holds, or of each
// machine whose owner is asked about a turn before it takes it.
func ownerQuestions(tx *store.Tx, a execution.Attempt) ([]OwnerQuestion, error) {
	if a.SubjectKind == execution.SubjectTurn {
		return turnQuestions(tx, a)
	}
	if !a.State.Held() {
		return nil, nil
	}
	key, err := ownerKeyOf(tx, a, 0)
	if err != nil || !key.waits() || key.decided != nil {
		return nil, err
	}
	work, _, err := workAsked(a, key.asked)
	if err != nil {
		return nil, err
	}
	wait, bound := key.asked.GetWaitMs(), "its edge.hcl lets it wait no longer"
	if most := work.GetMaxOwnerWaitMs(); most > 0 && wait >= most {
		wait, bound = most, "as long as an approval of its agent may wait: ttl of its approvals, within the server's bound"
	}
	until := a.StartedAt.Add(time.Duration(wait) * time.Millisecond)
	if !tx.Now.Before(until) {
		return nil, nil // its machine has yet to say so
	}
	q, err := questionOf(tx, a, a.Runner)
	q.Work, q.Arguments, q.Digest, q.Bound = work.GetAction(), work.GetArguments(), key.asked.GetDigest(), bound
	q.AskedAt, q.Until = a.StartedAt, until
	return []OwnerQuestion{q}, err
}

// heardWithin is how long ago a machine may have said last that its owner is asked
// about a turn: it is offered what waits every few seconds, and says so each time.
const heardWithin = 2 * time.Minute

func turnQuestions(tx *store.Tx, a execution.Attempt) (out []OwnerQuestion, err error) {
	if a.State != execution.AttemptQueued && a.State != execution.AttemptOffered {
		return nil, nil
	}
	for _, asked := range a.Requirements.Asked {
		if tx.Now.Sub(asked.HeardAt) > heardWithin || !tx.Now.Before(asked.Until) {
			continue
		}
		q, err := questionOf(tx, a, asked.Runner)
		if err != nil {
			return nil, err
		}
		q.Work, q.Digest, q.AskedAt, q.Until = secondkey.Turn, asked.Digest, asked.At, asked.Until
		q.Bound = "its edge.hcl lets it wait no longer"
		if !asked.Until.Before(a.PlacementDeadline) {
			q.Bound = "as long as a turn of its agent may wait for a machine: place_within of its limits"
		}
		out = append(out, q)
	}
	return out, nil
}

// questionOf is what is the same for every kind of work.
func questionOf(tx *store.Tx, a execution.Attempt, on protocol.RunnerID) (OwnerQuestion, error) {
	q := OwnerQuestion{Attempt: a.ID, Runner: on, Machine: on.String()}
	t, err := tx.TurnOfAttempt(a.ID)
	if err != nil {
		return q, err
	}
	q.Turn, q.Session = t.ID, t.Session
	r, err := tx.Runner(on)
	switch {
	case err == nil:
		q.Machine = r.Name
	case !notFound(err):
		return q, err
	}
	return q, nil
}

// explainOwners says of an attempt that it waits for owners of machines, if it does.
func explainOwners(tx *store.Tx, a execution.Attempt, x *Explanation) error {
	questions, err := ownerQuestions(tx, a)
	if err != nil || len(questions) == 0 {
		return err
	}
	var waits, remedies []string
	for _, q := range questions {
		approve, deny := q.Commands()
		waits = append(waits, q.sentence())
		remedies = append(remedies, fmt.Sprintf("on machine %s: %s", q.Machine, approve), fmt.Sprintf("on machine %s: %s", q.Machine, deny))
	}
	x.WaitingFor, x.Remedies = strings.Join(waits, "; or "), append(remedies, x.Remedies...)
	return nil
}

// NotDecidedHere is the refusal to decide, at the server, what waits for the owner of
// a machine: whoever runs the server has no second key. INV-6. id is of an attempt, an
// action or a turn; where nothing of it waits so, the refusal says that.
func (e *Engine) NotDecidedHere(ctx context.Context, c store.Caller, id string) error {
	waiting, err := e.OwnerQuestions(ctx, c)
	if err != nil {
		return err
	}
	for _, q := range waiting {
		if id != q.Attempt.String() && id != q.Turn.String() {
			continue
		}
		approve, deny := q.Commands()
		return protocol.Errorf(protocol.CodePermissionDenied, "%s waits for the owner of machine %q, until %s, and nobody decides that at the server; on that machine: %s, or %s",
			id, q.Machine, q.Until.UTC().Format(time.RFC3339), approve, deny)
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%q is not the id of an approval (apr_…), and nothing of it waits for the owner of a machine: `bivouac approvals` shows what waits", id)
}

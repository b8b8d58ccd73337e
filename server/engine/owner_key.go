package engine

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// ownerKey is what a machine has reported of its owner's second key over one action.
// Nothing here can give it: a machine believes its own owner alone. A question about
// something else than the machine was given is none.
type ownerKey struct {
	asked   *runnerv1.OwnerAsked
	decided *runnerv1.OwnerDecided
	over    bool // an effect may have begun, or there is a result
}

// waits reports that nothing of the action can have run: a machine begins only after
// the server has the owner's yes.
func (k ownerKey) waits() bool {
	return k.asked != nil && !k.over && (k.decided == nil || k.refused())
}

// refused reports that the owner said no, or nothing in time.
func (k ownerKey) refused() bool {
	d := k.decided.GetDecision()
	return k.asked != nil && (d == secondkey.Denied || d == secondkey.Expired)
}

// ownerKeyOf reads the records of a device attempt, up to a sequence; zero: all.
func ownerKeyOf(tx *store.Tx, a execution.Attempt, until int64) (k ownerKey, err error) {
	if a.SubjectKind != execution.SubjectAction || a.AcceptedSeq == 0 && until == 0 {
		return k, nil
	}
	records, err := tx.Records(a.ID)
	if err != nil {
		return k, err
	}
	for _, r := range records {
		if r.Evidence || r.Fence != a.Fence || until > 0 && r.Seq > until {
			continue
		}
		m := &runnerv1.Record{}
		if err := proto.Unmarshal(r.Body, m); err != nil {
			return k, err
		}
		switch kind := m.Kind.(type) {
		case *runnerv1.Record_OwnerAsked:
			if k.asked != nil {
				continue
			}
			if _, binds, err := workAsked(a, kind.OwnerAsked); err != nil {
				return k, err
			} else if binds {
				k.asked = kind.OwnerAsked
			}
		case *runnerv1.Record_OwnerDecided:
			if k.asked != nil && k.decided == nil {
				k.decided = kind.OwnerDecided
			}
		case *runnerv1.Record_EffectIntent, *runnerv1.Record_Result:
			k.over = true
		}
	}
	return k, nil
}

// workAsked is the work of a device attempt, and whether a question is about it.
func workAsked(a execution.Attempt, asked *runnerv1.OwnerAsked) (w *runnerv1.DeviceWork, binds bool, err error) {
	var work runnerv1.Work
	if err := proto.Unmarshal(a.Work, &work); err != nil {
		return nil, false, err
	}
	w = work.GetDevice()
	return w, asked.GetDigest() == secondkey.Digest(a.ID, a.Fence, a.Runner, w), nil
}

// forOwner adds what the owner of a machine is shown: where work comes from, and what
// people decided about it here.
func (w *turnTx) forOwner(a session.Action, d *runnerv1.DeviceWork) error {
	most, err := w.maxOwnerWait()
	if err != nil {
		return err
	}
	p, err := w.tx.Principal(w.turn.Principal)
	if err != nil {
		return err
	}
	d.MaxOwnerWaitMs = most.Milliseconds()
	d.Origin = &runnerv1.WorkOrigin{SessionId: w.turn.Session.String(), TurnId: w.turn.ID.String(), Principal: p.Name, Agent: w.snap.Agent.Name}
	if a.Approval == "" {
		return nil
	}
	approval, err := w.tx.Approval(a.Approval)
	if err != nil {
		return err
	}
	by, err := w.tx.Principal(approval.DecidedBy)
	d.ApprovedBy, d.ApprovalDigest = by.Name, approval.Digest
	return err
}

// maxOwnerWait bounds how long an action waits for the owner of its machine: as long
// as it may wait for any person.
func (w *turnTx) maxOwnerWait() (time.Duration, error) {
	snap, err := w.snapshot()
	if err != nil {
		return 0, err
	}
	return narrowed(snap.Agent.Approvals.TTL, w.e.cfg.Limits.MaxApprovalWait), nil
}

// ownerWait is how long a question may wait, by the machine's word and our bound.
func (w *turnTx) ownerWait(asked *runnerv1.OwnerAsked) (time.Duration, error) {
	most, err := w.maxOwnerWait()
	return max(0, min(most, time.Duration(asked.GetWaitMs())*time.Millisecond)), err
}

// ownerAsked notes that a machine's owner is asked. The wall time of the turn stands
// still meanwhile, once: a machine that asks again, or about something else than it
// was given, gets no time for it.
func (w *turnTx) ownerAsked(a execution.Attempt, r *runnerv1.Record) error {
	before, err := ownerKeyOf(w.tx, a, r.Seq-1)
	if err != nil || a.SubjectKind != execution.SubjectAction || before.asked != nil || before.over {
		return err
	}
	asked := r.GetOwnerAsked()
	work, binds, err := workAsked(a, asked)
	if err != nil {
		return err
	}
	if !binds {
		w.e.cfg.Log.Warn("a machine asks its owner about something else than it was given", "attempt", a.ID, "runner", a.Runner)
		return nil
	}
	wait, err := w.ownerWait(asked)
	if err != nil {
		return err
	}
	if w.turn.State.Active() {
		w.turn.Deadline = w.turn.Deadline.Add(wait)
		w.touch()
	}
	w.event(session.Event{Type: session.OwnerAsked, Attempt: a.ID, Data: map[string]string{
		"runner": a.Runner.String(), "tool": work.GetAction(), "digest": asked.GetDigest(),
		"until": w.tx.Now.Add(wait).UTC().Format(time.RFC3339)}})
	return nil
}

// ownerDecided notes the decision as evidence: who, about what, after how long by the
// clock of the machine. Why somebody denied is what the model is told, with the result.
func (w *turnTx) ownerDecided(a execution.Attempt, r *runnerv1.Record) error {
	key, err := ownerKeyOf(w.tx, a, r.Seq-1)
	if err != nil || key.asked == nil || key.decided != nil {
		return err
	}
	said := decisionSaid(a, r.GetOwnerDecided())
	said["machine_time"] = time.UnixMicro(r.AtUs).UTC().Format(time.RFC3339Nano)
	w.event(session.Event{Type: session.OwnerDecided, Attempt: a.ID, Data: said})
	return w.ownerAnswered(a, key.asked)
}

// decisionSaid is a decision as the record keeps it, in the machine's words.
func decisionSaid(a execution.Attempt, d *runnerv1.OwnerDecided) map[string]string {
	return map[string]string{"runner": a.Runner.String(), "decision": machineWords(d.GetDecision()), "by": machineWords(d.GetBy()),
		"digest": machineWords(d.GetDigest()), "waited_ms": strconv.FormatInt(d.GetWaitedMs(), 10)}
}

// ownerEnded is a result without a decision: the question is over too.
func (w *turnTx) ownerEnded(a execution.Attempt, r *runnerv1.Record) error {
	key, err := ownerKeyOf(w.tx, a, r.Seq-1)
	if err != nil || !key.waits() || key.decided != nil {
		return err
	}
	return w.ownerAnswered(a, key.asked)
}

// ownerAnswered lets the wall time run on: what the question did not use is given
// back, by our own clock.
func (w *turnTx) ownerAnswered(a execution.Attempt, asked *runnerv1.OwnerAsked) error {
	wait, err := w.ownerWait(asked)
	if err != nil {
		return err
	}
	if unused := wait - w.tx.Now.Sub(a.StartedAt); unused > 0 && w.turn.State.Active() && !a.StartedAt.IsZero() {
		w.turn.Deadline = w.turn.Deadline.Add(-unused)
		w.touch()
	}
	return nil
}

// reapAction settles an action whose machine is gone for longer than its retention
// while it waited for its owner. Nothing ran; any other action keeps its doubt. INV-5.
func (e *Engine) reapAction(ctx context.Context, seen execution.Attempt) (worked bool, err error) {
	err = e.onSeen(ctx, "reap", seen, func(w *turnTx, a execution.Attempt) error {
		worked = false
		action, err := w.tx.ActionOfAttempt(a.ID)
		if err != nil || action.State.Terminal() {
			return err
		}
		worked, err = w.notBegun(a, action, "its machine went away")
		return err
	})
	return worked, err
}

// notBegun settles an action that waits for the owner of its machine, if it does: a
// machine begins only after the server has the yes, and takes none from here on. why
// says what became of the machine. INV-5.
func (w *turnTx) notBegun(a execution.Attempt, action session.Action, why string) (settled bool, err error) {
	key, err := ownerKeyOf(w.tx, a, 0)
	if err != nil || !key.waits() {
		return false, err
	}
	cell := execution.Cell{Class: classOf(action, w.turn), Point: execution.AtSent, Knower: execution.MachineHolds}
	if remedy, _ := execution.Recover(cell); remedy != execution.Refute {
		return false, nil
	}
	why += " while it waited for its owner"
	if err := w.endAttempt(a, execution.AttemptInterrupt, reasonInterrupted, why); err != nil {
		return false, err
	}
	return true, w.settle(action, action.Fence, outcome{event: session.ActionFail, evidence: why, result: refuse(action.CallID, statusFailed,
		protocol.CodeUnavailable, "It did not run: "+why+", who had not approved it.")})
}

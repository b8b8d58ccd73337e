package engine

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// startAttempt makes the next attempt of a runner-placed turn: from the start,
// or from the checkpoint of the one that was interrupted.
func (w *turnTx) startAttempt(s session.Session, resume *runtimev1.LoopState) error {
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	now := w.tx.Now
	before, err := w.tx.AttemptsOfSubject(execution.SubjectTurn, w.turn.ID.String())
	if err != nil {
		return err
	}
	a := execution.Attempt{
		ID: newID[protocol.AttemptKind](w.e, now), Tenant: w.turn.Tenant, Principal: w.turn.Principal,
		SubjectKind: execution.SubjectTurn, SubjectID: w.turn.ID.String(), Number: len(before) + 1, State: execution.AttemptQueued,
		PolicyDigest: snap.PolicyDigest, AuthorityTTL: snap.Agent.Lease.AuthorityTTL, Retention: snap.Agent.Lease.Retention,
		QueuedAt: now, PlacementDeadline: now.Add(snap.Agent.Limits.PlaceWithin), Deadline: w.turn.Deadline,
		TraceParent: traceOf(w.turn),
	}
	if a.Requirements, err = w.requirements(snap, resume != nil); err != nil {
		return err
	}
	if err := w.turnWork(&a, s, resume); err != nil {
		return err
	}
	w.turn.Attempt, w.dirty = a.ID, true
	w.event(session.Event{Type: session.AttemptQueued, Attempt: a.ID})
	return w.tx.InsertAttempt(a)
}

// noRunner is the id of no machine.
const noRunner protocol.RunnerID = "run_00000000000000000000000000"

// requirements are never weaker than the agent asked. INV-11.
func (w *turnTx) requirements(snap *policy.Snapshot, resumes bool) (execution.Requirements, error) {
	q := execution.Requirements{Boundary: snap.Agent.Boundary, Trust: snap.Agent.Trust, Adapter: snap.Agent.Adapter, Egress: len(snap.Egress) > 0, Resumes: resumes,
		Allocation: snap.Agent.Allocation == policy.AllocationOwn}
	if s := snap.Agent.Sandbox; q.Allocation {
		q.Resources = execution.Resources{CPUMillis: s.CPUMillis, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes}
	}
	if len(snap.Agent.Runners) == 0 {
		return q, nil
	}
	bindings, err := w.tx.BindingsOf(w.turn.Principal)
	if err != nil {
		return q, err
	}
	for _, b := range bindings {
		r, err := w.tx.Runner(b.Runner)
		if err != nil {
			return q, err
		}
		if snap.Agent.AdmitsRunner(r.Name, r.ID) {
			q.Runners = append(q.Runners, r.ID)
		}
	}
	if len(q.Runners) == 0 {
		q.Runners = []protocol.RunnerID{noRunner} // an empty list would admit any
	}
	return q, nil
}

// turnWork is what a claim of the attempt hands over: the spec of the loop, and
// the files it starts from.
func (w *turnTx) turnWork(a *execution.Attempt, s session.Session, resume *runtimev1.LoopState) error {
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	conversation, err := w.conversation()
	if err != nil {
		return err
	}
	full := snap.Spec(policy.SpecParams{Attempt: a.ID, Conversation: conversation, Prompt: w.turn.Prompt, Resume: resume, Settled: settled(w.turn)})
	if left := w.wallLeft(a.QueuedAt, snap).Milliseconds(); left < full.Limits.MaxWallMs {
		full.Limits.MaxWallMs = max(1, left) // a turn that waited goes on with what it had left
	}
	spec, err := deterministic.Marshal(full)
	if err != nil {
		return err
	}
	work := &runnerv1.TurnWork{Spec: spec, Trust: snap.Agent.Trust, Limits: snap.Agent.Sandbox.Limits()}
	for _, r := range snap.Egress {
		work.Egress = append(work.Egress, &runnerv1.Egress{Name: r.Name, Protocol: r.Protocol, Url: r.URL})
	}
	if work.WorkspaceDigest, work.PatchDigests, err = w.tx.AcceptedPatches(s.ID); err != nil {
		return err
	}
	if resume != nil {
		work.CheckpointPatchDigest = w.turn.PatchDigest
	}
	return setWork(a, &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: work}, DeadlineUs: w.turn.Deadline.UnixMicro(), TraceParent: traceOf(w.turn)})
}

// interrupted ends the attempt of a machine that is gone and, where nothing of
// it could happen twice, starts one new attempt from the last checkpoint. While
// an action that the server dispatched is in flight, its outcome comes first.
func (w *turnTx) interrupted(a execution.Attempt, why string) error {
	if err := w.endAttempt(a, execution.AttemptInterrupt, reasonInterrupted, why); err != nil {
		return err
	}
	return w.goOn(a, why)
}

// wallLeft is what a turn has left of its time to work, seen from when an attempt
// of it was queued: the wait for a machine is on top.
func (w *turnTx) wallLeft(queued time.Time, snap *policy.Snapshot) time.Duration {
	return w.turn.Deadline.Sub(queued.Add(snap.Agent.Limits.PlaceWithin))
}

// goOn gives the turn of an interrupted attempt its one new attempt from the last
// checkpoint, where nothing could happen twice, and ends it otherwise.
func (w *turnTx) goOn(a execution.Attempt, why string) error {
	if !w.turn.State.Active() || w.turn.Attempt != a.ID {
		return nil
	}
	w.watchUsage()
	if w.turn.State == session.WaitingApproval {
		w.afterCommit(w.e.rested.Ring) // the approvals tick asks again, once there is a slice
		return nil
	}
	again, err := w.mayResume()
	if err != nil {
		return err
	}
	if !again {
		return w.endFailed(reasonInterrupted, "The work was interrupted: "+why+".")
	}
	s, err := w.tx.Session(w.turn.Session)
	if err != nil {
		return err
	}
	var resume *runtimev1.LoopState
	if len(w.turn.Loop) > 0 {
		if resume, err = w.state(); err != nil {
			return err
		}
	}
	if err := w.step(session.TurnDoubt); err != nil {
		return err
	}
	if err := w.step(session.TurnReplace); err != nil {
		return err
	}
	w.turn.Attempts++
	w.moved("the work was interrupted; the turn goes on from its last checkpoint")
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	w.turn.Deadline = w.tx.Now.Add(snap.Agent.Limits.PlaceWithin + snap.Agent.Limits.MaxWall)
	return w.startAttempt(s, resume)
}

// mayResume says whether a new attempt could do nothing twice: it is the second
// one, and every effect that the engine carried out for the turn is part of the
// checkpoint, so that the loop knows of it. INV-5.
func (w *turnTx) mayResume() (bool, error) {
	if w.turn.Attempts >= session.MaxAttempts || w.turn.State != session.RunningModel {
		return false, nil
	}
	actions, err := w.tx.ActionsOfTurn(w.turn.ID)
	if err != nil {
		return false, err
	}
	known := map[string]int{}
	if len(w.turn.Loop) > 0 {
		state, err := w.state()
		if err != nil {
			return false, err
		}
		for _, m := range state.Messages {
			for _, b := range m.Blocks {
				if r := b.GetToolResult(); r != nil {
					known[r.CallId]++
				}
			}
		}
	}
	for _, a := range actions {
		if a.Effect == runtimev1.Effect_EFFECT_READ || a.DispatchedAt.IsZero() {
			continue
		}
		if known[a.CallID]--; known[a.CallID] < 0 {
			return false, nil
		}
	}
	return true, nil
}

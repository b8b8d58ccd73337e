package engine

import (
	"encoding/json"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

var zeroTime time.Time

// chooseRunner fixes the machine of a device action: it is the destination that
// an approval binds, and nothing falls back to another. INV-11.
func (w *turnTx) chooseRunner(a *session.Action) (*runtimev1.ToolResult, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	machines, err := machinesOf(w.tx, a.Principal)
	if err != nil {
		return nil, err
	}
	m, arguments, err := policy.ChooseMachine(snap.Agent, a.Tool, a.Arguments, machines)
	if err != nil {
		return refuse(a.CallID, statusDenied, protocol.CodeOf(err), err.Error()), nil
	}
	a.Destination, a.Arguments = m.Runner.String(), arguments
	return nil, nil
}

// queueDevice makes the attempt that carries a device action out.
func (w *turnTx) queueDevice(a session.Action) (session.Action, error) {
	snap, err := w.snapshot()
	if err != nil {
		return a, err
	}
	arguments, err := deviceArguments(a)
	if err != nil {
		return a, err
	}
	needs := a.Tool
	if needs == policy.RefDigest {
		needs = policy.RefWrite // digesting a file is part of writing it
	}
	now := w.tx.Now
	attempt := execution.Attempt{
		ID: newID[protocol.AttemptKind](w.e, now), Tenant: a.Tenant, Principal: a.Principal,
		SubjectKind: execution.SubjectAction, SubjectID: a.ID.String(), Number: 1, State: execution.AttemptQueued,
		Requirements: execution.Requirements{Runners: []protocol.RunnerID{protocol.RunnerID(a.Destination)}, Action: needs},
		PolicyDigest: snap.PolicyDigest, AuthorityTTL: snap.Agent.Lease.AuthorityTTL, Retention: snap.Agent.Lease.Retention,
		QueuedAt: now, PlacementDeadline: earliest(now.Add(snap.Agent.Limits.PlaceWithin), w.turn.Deadline),
		Deadline: w.turn.Deadline, TraceParent: traceOf(w.turn), IdempotencyKey: a.IdempotencyKey,
	}
	device := &runnerv1.DeviceWork{
		ActionId: a.ID.String(), Action: a.Tool, Arguments: arguments, ArgumentsDigest: canonical.Digest([]byte(arguments)),
		PreImageDigest: a.PreImageDigest, MaxOutputBytes: int64(snap.Agent.Limits.MaxResultBytes),
	}
	if err := w.forOwner(a, device); err != nil {
		return a, err
	}
	err = setWork(&attempt, &runnerv1.Work{DeadlineUs: attempt.Deadline.UnixMicro(), TraceParent: attempt.TraceParent,
		Kind: &runnerv1.Work_Device{Device: device}})
	if err != nil {
		return a, err
	}
	a.Attempt = attempt.ID
	w.event(session.Event{Type: session.AttemptQueued, Action: a.ID, Attempt: attempt.ID, Data: map[string]string{"runner": a.Destination, "tool": a.Tool}})
	return a, w.tx.InsertAttempt(attempt)
}

// setWork encodes what a claim will hand over, and its digest.
func setWork(a *execution.Attempt, work *runnerv1.Work) error {
	b, err := deterministic.Marshal(work)
	if err != nil {
		return err
	}
	a.Work, a.SpecDigest = b, canonical.Digest(b)
	return nil
}

// deviceArguments are what the runner gets. The digest of a file needs its path
// only; the action keeps the whole write that it prepares.
func deviceArguments(a session.Action) (string, error) {
	if a.Tool != policy.RefDigest {
		return a.Arguments, nil
	}
	var args struct {
		Path string `json:"path"`
	}
	if err := json.Unmarshal([]byte(a.Arguments), &args); err != nil {
		return "", err
	}
	b, err := canonical.Marshal(args)
	return string(b), err
}

// ShownArguments are the arguments of an action as people see them: those that
// it was carried out with.
func ShownArguments(a session.Action) (arguments, digest string) {
	if a.Tool != policy.RefDigest {
		return a.Arguments, a.ArgumentsDigest
	}
	own, err := deviceArguments(a)
	if err != nil {
		return "", "" // they are not repeated: the write has them
	}
	return own, canonical.Digest([]byte(own))
}

// readPreImage reads the output of files.digest: empty for a file that is not
// there.
func readPreImage(output string) (string, error) {
	var out struct {
		Exists bool   `json:"exists"`
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal([]byte(output), &out); err != nil || out.Exists != (out.Digest != "") {
		return "", protocol.Errorf(protocol.CodeInternal, "the runner's digest of the file cannot be read")
	}
	return out.Digest, nil
}

// deviceOutcome reads a runner's result of a device action.
func deviceOutcome(a session.Action, r *runnerv1.Result) outcome {
	result := &runtimev1.ToolResult{CallId: a.CallID, Code: r.Code, Text: r.Message}
	o := outcome{result: result, evidence: "the runner reports " + r.Status}
	switch r.Status {
	case protocol.ResultSucceeded:
		o.event, result.Status, result.Text, result.Truncated, result.Code = session.ActionSucceed, statusOK, r.Output, r.Truncated, ""
	case protocol.ResultDenied:
		o.event, result.Status = session.ActionDeny, statusDenied
	case protocol.ResultCancelled:
		o.event, result.Status = session.ActionCancel, runtimev1.ResultStatus_RESULT_STATUS_SKIPPED
	case protocol.ResultFailed:
		o.event, result.Status = session.ActionFail, statusFailed
	default: // INV-5: what the runner does not know is never a failure
		return cannotTell(a, r)
	}
	if result.Code == "" && result.Status != statusOK {
		result.Code = string(protocol.CodeInternal)
	}
	return o
}

// cannotTell is the outcome of an action of which its own machine does not know
// what became of it.
func cannotTell(a session.Action, r *runnerv1.Result) outcome {
	evidence := "the runner cannot tell: " + r.Message
	remedy, _ := execution.Recover(execution.Cell{Class: classOf(a, session.Turn{}), Point: execution.AtSent, Knower: execution.MachineLost})
	if remedy == execution.Refute {
		return outcome{event: session.ActionFail, evidence: evidence, result: refuse(a.CallID, statusFailed, protocol.CodeUnavailable,
			"The machine lost the answer. It only reads, so nothing was changed; it may be called again.")}
	}
	return unknownOutcome(a, evidence)
}

// settleDevice makes a runner's result the outcome of its action.
func (w *turnTx) settleDevice(a session.Action, r *runnerv1.Result) error {
	if a.State.Terminal() {
		return nil // given up before: the records are the evidence
	}
	o := deviceOutcome(a, r)
	if o.event == session.ActionGiveUp && a.State == session.Dispatched {
		var err error
		if a, err = w.doubt(a, o.evidence); err != nil {
			return err
		}
		o.evidence = ""
	}
	return w.settle(a, a.Fence, o)
}

// stopAttempt asks for the end of a device attempt. One that nobody holds, or that
// waits for the owner of its machine, ends at once; begun reports one that a runner
// holds, whose outcome is still to come.
func (w *turnTx) stopAttempt(id protocol.AttemptID, why string) (begun bool, err error) {
	a, err := w.tx.Attempt(id)
	if err != nil {
		return true, err
	}
	if a.State.Terminal() {
		return true, nil
	}
	key, err := ownerKeyOf(w.tx, a, 0)
	if err != nil {
		return true, err
	}
	if !a.State.Held() || key.waits() {
		return false, w.endAttempt(a, execution.AttemptCancel, reasonCancelled, why)
	}
	a.StopAt, a.StopReason = w.tx.Now, why
	if err := w.tx.SaveAttempt(a, a.State, a.Fence); err != nil {
		return true, err
	}
	return true, w.mailStop(a, why)
}

// mailStop tells the machine of an attempt to stop it.
func (w *turnTx) mailStop(a execution.Attempt, why string) error {
	return w.e.mail(w.tx, a.Runner, a.ID, &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{
		Stop: &runnerv1.Stop{AttemptId: a.ID.String(), Reason: why}}})
}

func earliest(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

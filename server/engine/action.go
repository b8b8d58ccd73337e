package engine

import (
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/redact"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// callTool makes the intent of one call, or its refusal. The intent commits with
// the turn's state, and the dispatch tick acts only on what is committed. INV-4.
func (w *turnTx) callTool(call *runtimev1.ToolCall, tool *runtimev1.Tool) error {
	shown, _ := redact.Text(call.Arguments)
	w.event(session.Event{Type: session.ToolRequested, Payload: shown, Data: map[string]string{
		session.DataCallID: call.Id, session.DataAlias: call.Alias, "tool": tool.Ref}})
	a, refusal, err := w.intend(call, tool)
	if err != nil {
		return err
	}
	if refusal != nil {
		return w.answer("", tool, refusal)
	}
	ev := session.TurnNextCall
	if w.turn.State == session.RunningModel {
		ev = session.TurnAct
	}
	if err := w.step(ev); err != nil {
		return err
	}
	return w.begin(a, tool)
}

// begin stores an action as the intent that it is, or asks a person first. A
// write to a file first learns what the file is now, so that an approval binds
// it and an unattended write replaces nothing unseen.
func (w *turnTx) begin(a session.Action, tool *runtimev1.Tool) error {
	if a.Tool == policy.RefWrite {
		a.Tool, a.Effect, a.Recovery = policy.RefDigest, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT
	} else if tool.NeedsApproval {
		return w.askApproval(a)
	} else if plantedNoIntent && a.Placement == runtimev1.Placement_PLACEMENT_GATEWAY {
		return w.sendUnrecorded(a)
	}
	return w.tx.InsertAction(a)
}

// beginWrite continues a write whose pre-image is known.
func (w *turnTx) beginWrite(digest session.Action, preImage string, tool *runtimev1.Tool) error {
	a := digest
	a.ID, a.State = newID[protocol.ActionKind](w.e, w.tx.Now), session.Intended
	a.Tool, a.Effect, a.Recovery = tool.Ref, tool.Effect, tool.Recovery
	a.PreImageDigest, a.IdempotencyKey = preImage, a.ID.String()
	a.Attempt, a.Result, a.Code, a.Evidence = "", nil, "", ""
	a.IntentAt, a.DispatchedAt, a.OutcomeAt = w.tx.Now, zeroTime, zeroTime
	if err := w.step(session.TurnNextCall); err != nil {
		return err
	}
	if tool.NeedsApproval {
		return w.askApproval(a)
	}
	return w.tx.InsertAction(a)
}

// intend checks one call against current authority and makes its action. A
// refusal is a result that the model can read.
func (w *turnTx) intend(call *runtimev1.ToolCall, tool *runtimev1.Tool) (session.Action, *runtimev1.ToolResult, error) {
	a := session.Action{
		ID: newID[protocol.ActionKind](w.e, w.tx.Now), Turn: w.turn.ID, Session: w.turn.Session,
		Tenant: w.turn.Tenant, Principal: w.turn.Principal, CallID: call.Id, Tool: tool.Ref, Alias: tool.Alias,
		Placement: tool.Placement, Effect: tool.Effect, Recovery: tool.Recovery, State: session.Intended,
		Arguments: call.Arguments, Destination: tool.Destination, Fence: w.turn.OwnerFence, IntentAt: w.tx.Now,
	}
	a.IdempotencyKey = a.ID.String()
	if tool.Placement == runtimev1.Placement_PLACEMENT_DEVICE {
		if refusal, err := w.chooseRunner(&a); refusal != nil || err != nil {
			return a, refusal, err
		}
	}
	a.ArgumentsDigest = canonical.Digest([]byte(a.Arguments))
	a.ResourceKey = resourceKey(a)
	if tool.NeedsApproval && w.turn.Placement == session.PlacementRunner && !w.canPark {
		return a, refuse(call.Id, statusDenied, protocol.CodeApprovalRequired,
			tool.Alias+" needs a person's approval, and the runner of this turn cannot wait for one. Do without it, or say that it is needed."), nil
	}
	refusal, err := w.heldBack(a)
	return a, refusal, err
}

// heldBack refuses a call while it is not known what an earlier one did to the
// same thing. It is asked for the intent, and again before it is dispatched: the
// earlier one may have been in doubt only, and be given up meanwhile. INV-5.
func (w *turnTx) heldBack(a session.Action) (*runtimev1.ToolResult, error) {
	held, err := w.tx.UnresolvedUnknown(a.Principal, a.ResourceKey)
	switch {
	case notFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return refuse(a.CallID, statusDenied, protocol.CodeOutcomeUnknown,
		"An earlier call of "+held.Tool+" on the same thing has an unknown outcome: it may have happened. It is not done again until a person decides (action "+held.ID.String()+")."), nil
}

// resourceKey is what an unknown outcome blocks: the file for file actions,
// otherwise tool and arguments.
func resourceKey(a session.Action) string {
	if a.Placement == runtimev1.Placement_PLACEMENT_DEVICE {
		var args struct {
			Path string `json:"path"`
		}
		if json.Unmarshal([]byte(a.Arguments), &args) == nil && args.Path != "" {
			return a.Tool + " " + a.Destination + " " + args.Path
		}
	}
	return policy.ResourceKey(a.Tool, a.ArgumentsDigest)
}

// outcome is what became known of an action.
type outcome struct {
	event    session.ActionEvent
	result   *runtimev1.ToolResult // what the model gets
	evidence string
}

// settle makes an action's outcome durable and lets the turn go on with it, in
// one transaction. The fence is the one under which the outcome was learned.
// INV-3.
func (w *turnTx) settle(a session.Action, fence protocol.Fence, o outcome) error {
	if fence != a.Fence {
		return protocol.Errorf(protocol.CodeStaleFence, "fence %s is not the current fence of action %s", fence, a.ID)
	}
	next, err := a.Step(o.event, w.tx.Now)
	if err != nil {
		return err
	}
	if o.result != nil {
		if o.result, err = w.presentable(o.result); err != nil {
			return err
		}
		if next.Result, err = deterministic.Marshal(o.result); err != nil {
			return err
		}
		next.Code = o.result.Code
	}
	next.Evidence = joinEvidence(a.Evidence, o.evidence)
	if err := w.tx.SaveAction(next, a.State, a.Fence); err != nil {
		return err
	}
	if next.State == session.ActionUnknown {
		w.event(session.Event{Type: session.ToolUnknown, Action: a.ID, Attempt: a.Attempt, Data: map[string]string{
			session.DataCallID: a.CallID, session.DataAlias: a.Alias, "evidence": next.Evidence}})
		w.afterCommit(w.e.cfg.Meter.Unknown)
	}
	w.afterCommit(func() {
		w.e.cfg.Log.Info("action settled", "turn", a.Turn, "action", a.ID, "tool", a.Tool, "state", next.State)
	})
	if w.turn.State.Terminal() {
		w.event(session.Event{Type: session.LateResult, Action: a.ID, Attempt: a.Attempt, Data: map[string]string{
			session.DataCallID: a.CallID, "state": string(next.State), "code": next.Code}})
		return nil
	}
	return w.proceed(next, o.result)
}

// proceed gives the turn the result of a settled action.
func (w *turnTx) proceed(a session.Action, r *runtimev1.ToolResult) error {
	tool, err := w.tool(a.Alias)
	if err != nil {
		return err
	}
	if a.Tool == policy.RefDigest && a.State == session.Succeeded {
		preImage, err := readPreImage(r.GetText())
		if err == nil {
			return w.beginWrite(a, preImage, tool)
		}
		r = refuse(a.CallID, statusFailed, protocol.CodeInternal, err.Error())
	}
	return w.answer(a.ID, tool, r)
}

// answer gives the call its one result. In a service-placed turn the loop takes
// it; the worker of a runner-placed one gets it by mail, or, when its attempt is
// parked, the next one finds it in the transcript.
func (w *turnTx) answer(action protocol.ActionID, tool *runtimev1.Tool, r *runtimev1.ToolResult) error {
	w.settling = action
	if w.turn.Placement == session.PlacementRunner {
		if parked, err := w.parkedAttempt(); err != nil {
			return err
		} else if parked {
			return w.answerParked(r)
		}
		return w.answerWorker(tool, r)
	}
	return w.feed(loop.ToolAnswered{Result: r})
}

// presentable is a result as it may be stored and shown: without secrets that a
// pattern finds, and bounded. The broker has removed exact values before.
func (w *turnTx) presentable(r *runtimev1.ToolResult) (*runtimev1.ToolResult, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	out := proto.CloneOf(r)
	var cut bool
	out.Text, _ = redact.Text(r.Text)
	out.Text, cut = loop.Truncate(out.Text, int(snap.Agent.Limits.MaxResultBytes))
	out.Truncated = r.Truncated || cut
	return out, nil
}

// Statuses of results, short.
const (
	statusOK      = runtimev1.ResultStatus_RESULT_STATUS_OK
	statusFailed  = runtimev1.ResultStatus_RESULT_STATUS_FAILED
	statusDenied  = runtimev1.ResultStatus_RESULT_STATUS_DENIED
	statusUnknown = runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN
)

// refuse is a result with a stable code and a sentence for the model.
func refuse(callID string, status runtimev1.ResultStatus, code protocol.Code, text string) *runtimev1.ToolResult {
	return &runtimev1.ToolResult{CallId: callID, Status: status, Code: string(code), Text: text}
}

// unknownOutcome gives an action up: it may have happened. INV-5.
func unknownOutcome(a session.Action, evidence string) outcome {
	if planted.Chosen == planted.Failure {
		return outcome{event: session.ActionFail, evidence: evidence, result: refuse(a.CallID, statusFailed, protocol.CodeUnavailable, "It failed.")}
	}
	return outcome{event: session.ActionGiveUp, evidence: evidence, result: refuse(a.CallID, statusUnknown, protocol.CodeOutcomeUnknown,
		"The outcome of this call is not known: it may have happened. Do not repeat it; say so to the person.")}
}

// joinEvidence adds to what is known; what was the last word already is not repeated.
func joinEvidence(old, more string) string {
	switch {
	case more == "" || old == more || strings.HasSuffix(old, "; "+more):
		return old
	case old == "":
		return more
	}
	return old + "; " + more
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// invokeOp is the key of the op of one gateway action.
func invokeOp(id protocol.ActionID) string { return "invoke/" + id.String() }

// gatewayCall is what a gateway action needs once its dispatch is durable.
type gatewayCall struct {
	action  session.Action
	grant   protocol.GrantID // under which it goes out
	sealed  []byte           // its secret part
	request *brokerv1.InvokeRequest
}

// prepareCall mints the action's capability and makes its request.
func (w *turnTx) prepareCall(a session.Action) (*gatewayCall, error) {
	auth, err := w.actionAuthority(a)
	if err != nil {
		return nil, err
	}
	tool, found := auth.snap.Tool(a.Tool)
	if !found || !tool.InGateway() {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "action %s has no gateway tool in its turn's snapshot", a.ID)
	}
	narrow := forAction(a)
	if planted.Chosen == planted.Wide {
		narrow = func(c *capability.Claims) { auth.forModel(c); forAction(a)(c) }
	}
	token, err := w.e.mint(auth, w.tx.Now, narrow)
	if err != nil {
		return nil, err
	}
	return &gatewayCall{action: a, grant: auth.grant, sealed: auth.sealed, request: &brokerv1.InvokeRequest{
		Capability: token, ActionId: a.ID.String(), Tool: gatewayTool(tool), Arguments: a.Arguments,
		IdempotencyKey: a.IdempotencyKey, MaxOutputBytes: auth.snap.Agent.Limits.MaxResultBytes,
	}}, nil
}

// gatewayTool is what a definition says of a tool, as the broker is told it.
func gatewayTool(t policy.Tool) *brokerv1.HttpTool {
	if m := t.MCP; m != nil {
		return &brokerv1.HttpTool{
			Ref: t.Ref, Destination: m.Destination, Credential: m.Credential, TimeoutMs: int32(m.Timeout.Milliseconds()),
			Mcp: &brokerv1.McpCall{Tool: m.Tool, SchemaDigest: m.SchemaDigest, Reads: t.Effect == runtimev1.Effect_EFFECT_READ, Repeatable: t.Recovery == runtimev1.Recovery_RECOVERY_IDEMPOTENT},
		}
	}
	if h := t.SSH; h != nil {
		return &brokerv1.HttpTool{
			Ref: t.Ref, Destination: h.Destination, Credential: h.Credential, TimeoutMs: int32(h.Timeout.Milliseconds()),
			Ssh:   &brokerv1.SshCall{Command: h.Command, Inspectable: t.Recovery == runtimev1.Recovery_RECOVERY_INSPECTABLE},
			Reads: t.Effect == runtimev1.Effect_EFFECT_READ, Repeatable: t.Recovery == runtimev1.Recovery_RECOVERY_IDEMPOTENT,
		}
	}
	return &brokerv1.HttpTool{
		Ref: t.Ref, Destination: t.HTTP.Destination, Method: t.HTTP.Method, Path: t.HTTP.Path,
		Credential: t.HTTP.Credential, Body: t.HTTP.Body, IdempotencyHeader: t.HTTP.IdempotencyHeader,
		TimeoutMs: int32(t.HTTP.Timeout.Milliseconds()),
		Reads:     t.Effect == runtimev1.Effect_EFFECT_READ, Repeatable: t.Recovery == runtimev1.Recovery_RECOVERY_IDEMPOTENT,
	}
}

// startCall sends a dispatched action to the broker. An op that cannot start or
// is cut off leaves the action to the reconcile tick.
func (e *Engine) startCall(c *gatewayCall) bool {
	id := c.action.ID
	started := e.cfg.Ops.Start(invokeOp(id), func(ctx context.Context) {
		resp, err := e.invoke(ctx, c)
		if err != nil && (ctx.Err() != nil || errors.Is(err, errUnread)) {
			e.calls.forget(id)
			return
		}
		fault.Here(fault.ServerOutcomeReceived)
		e.settled.put(completion{op: invokeOp(id), apply: func(ctx context.Context) error {
			err := e.settleCall(ctx, c.action, resp, err)
			if err == nil || lostRace(err) {
				e.calls.forget(id)
			}
			return err
		}})
	})
	if !started {
		e.calls.forget(id)
	}
	return started
}

// settleCall makes the broker's answer the action's outcome. Without an answer, or
// with one that is nobody's word on the effect, it is in doubt, unless the broker said
// that it refused. INV-5.
func (e *Engine) settleCall(ctx context.Context, started session.Action, resp *brokerv1.InvokeResponse, failure error) error {
	return e.onTurn(ctx, "settle", started.Turn, func(w *turnTx) error {
		a, err := w.tx.Action(started.ID)
		if err != nil {
			return err
		}
		if a.State.Terminal() {
			return protocol.Errorf(protocol.CodeStaleFence, "action %s is %s already", a.ID, a.State)
		}
		why := "no answer came back: " + string(protocol.CodeOf(failure))
		switch {
		case failure == nil && saysNo(resp) && sentBefore(a):
			why = "the repetition was answered with " + answerOf(resp.HttpStatus, resp.Failed)
		case failure == nil && unsure(a, resp):
			why = "answered with " + answerOf(resp.HttpStatus, resp.Failed) + notOfTheEffect
		case failure == nil:
			return w.settle(a, started.Fence, outcomeOfAnswer(a, resp))
		case refusedByBroker(failure) && !sentBefore(a):
			return w.settle(a, started.Fence, outcomeOfRefusal(a, failure))
		}
		_, err = w.doubt(a, why)
		return err
	})
}

// sentAgain is the evidence of an action that was sent more than once.
const sentAgain = "sent again under the same key"

// sentBefore reports an effect that an earlier sending may have had: that a later
// one was refused, or failed, says nothing of it. INV-5.
func sentBefore(a session.Action) bool {
	return a.Effect != runtimev1.Effect_EFFECT_READ && strings.Contains(a.Evidence, sentAgain)
}

// outcomeOfAnswer reads an upstream's answer, which is not unsure.
func outcomeOfAnswer(a session.Action, resp *brokerv1.InvokeResponse) outcome {
	r := &runtimev1.ToolResult{CallId: a.CallID, Status: statusOK, Text: bodyText(resp), Truncated: resp.Truncated}
	ev := session.ActionSucceed
	if saysNo(resp) {
		ev, r.Status, r.Code = session.ActionFail, statusFailed, string(statusCode(resp.HttpStatus))
	}
	if saysNo(resp) && !resp.Failed {
		r.Text = strings.TrimSpace(fmt.Sprintf("HTTP %d\n%s", resp.HttpStatus, r.Text))
	}
	return outcome{event: ev, result: r, evidence: "answered with " + answerOf(resp.HttpStatus, resp.Failed) + ", body " + resp.BodyDigest}
}

// bodyText is what a model may read of a body. That there is more is said first, where
// no bound cuts it off.
func bodyText(resp *brokerv1.InvokeResponse) string {
	if resp.Unread != "" {
		return "[not all of it: " + resp.Unread + "]\n" + textOf(resp)
	}
	return textOf(resp)
}

func textOf(resp *brokerv1.InvokeResponse) string {
	kind, _, err := mime.ParseMediaType(resp.ContentType)
	textual := err != nil || strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "json") ||
		strings.HasSuffix(kind, "xml") || strings.HasSuffix(kind, "yaml") || kind == "application/x-www-form-urlencoded"
	if textual && (utf8.Valid(resp.Body) || resp.Truncated) {
		return shown(resp.Body)
	}
	return fmt.Sprintf("[%d bytes of %s, digest %s: not text]", resp.BodyBytes, kind, resp.BodyDigest)
}

// shown is a body as text. A character that a bound cut in two is left out; any other
// bytes that are no text are marked and not left out: what stands around them would
// become a text that nobody redacted. INV-17.
func shown(body []byte) string {
	for range utf8.UTFMax - 1 {
		if r, n := utf8.DecodeLastRune(body); r != utf8.RuneError || n != 1 {
			break
		}
		body = body[:len(body)-1]
	}
	return strings.ToValidUTF8(string(body), "\uFFFD")
}

func statusCode(status int32) protocol.Code {
	switch {
	case status == 401 || status == 403:
		return protocol.CodePermissionDenied
	case status == 404 || status == 410:
		return protocol.CodeNotFound
	case status == 409:
		return protocol.CodeConflict
	case status == 429:
		return protocol.CodeRateLimited
	case status >= 500:
		return protocol.CodeUnavailable
	}
	return protocol.CodeFailedPrecondition
}

// refusals are codes by which the broker says that it sent nothing. Every other
// failure may have come after the sending.
var refusals = map[protocol.Code]bool{
	protocol.CodeInvalidArgument: true, protocol.CodeUnauthenticated: true, protocol.CodePermissionDenied: true,
	protocol.CodePolicyDenied: true, protocol.CodeNotFound: true, protocol.CodeFailedPrecondition: true,
	protocol.CodeStaleFence: true, protocol.CodeLeaseExpired: true, protocol.CodeRateLimited: true,
	protocol.CodeBudgetExhausted: true, protocol.CodeIncompatible: true,
}

func refusedByBroker(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && refusals[e.Code]
}

// refusedUnsent is the evidence of a call that the broker refused before it left.
const refusedUnsent = "refused before sending"

// outcomeOfRefusal is the known outcome of a call that was refused before it left.
func outcomeOfRefusal(a session.Action, why error) outcome {
	code, text := protocol.CodeOf(why), didNotRun+why.Error()
	switch code {
	case protocol.CodeUnauthenticated, protocol.CodePermissionDenied, protocol.CodePolicyDenied, protocol.CodeStaleFence, protocol.CodeLeaseExpired:
		return outcome{event: session.ActionDeny, result: refuse(a.CallID, statusDenied, code, text), evidence: refusedUnsent}
	}
	return outcome{event: session.ActionFail, result: refuse(a.CallID, statusFailed, code, text), evidence: refusedUnsent}
}

// lookupOp is the key of the op that asks the broker's call log.
func lookupOp(id protocol.ActionID) string { return "lookup/" + id.String() }

// startLookup asks what became of an action whose answer never came.
func (e *Engine) startLookup(a session.Action) bool {
	return e.cfg.Ops.Start(lookupOp(a.ID), func(ctx context.Context) {
		found, err := e.cfg.Broker.LookupAction(ctx, a.ID)
		if ctx.Err() != nil {
			return
		}
		e.settled.put(completion{op: lookupOp(a.ID), apply: func(ctx context.Context) error {
			return e.settleLookup(ctx, a, found, err)
		}})
	})
}

// settleLookup uses the evidence, as the recovery table says: what the log does not
// cover stays in doubt until the reconcile deadline gives it up. INV-5.
func (e *Engine) settleLookup(ctx context.Context, asked session.Action, found *brokerv1.LookupActionResponse, failure error) error {
	knower, o := evidenceOf(asked, found, failure)
	return e.settleEvidence(ctx, asked, knower, o)
}

// settleEvidence does what is to be done now that somebody has spoken.
func (e *Engine) settleEvidence(ctx context.Context, asked session.Action, knower execution.Knower, o outcome) error {
	inspect := false
	err := e.onTurn(ctx, "settle", asked.Turn, func(w *turnTx) error {
		inspect = false
		a, err := w.tx.Action(asked.ID)
		if err != nil {
			return err
		}
		if a.State != session.Reconciling || a.Fence != asked.Fence {
			return protocol.Errorf(protocol.CodeStaleFence, "action %s is %s already", a.ID, a.State)
		}
		cell := execution.Cell{Class: classOf(a, w.turn), Point: execution.AtSent, Knower: knower}
		if w.turn.State.Terminal() {
			cell.Point = execution.AtEnded
		}
		switch remedy, _ := execution.Recover(cell); remedy {
		case execution.Accept, execution.Refute:
			return w.settle(a, asked.Fence, o)
		case execution.GiveUp:
			return w.giveUp(a, o.evidence)
		case execution.Inspect:
			inspect = knower == execution.LogLost
		}
		return nil
	})
	if err == nil && inspect {
		return e.startInspect(ctx, asked)
	}
	if err == nil {
		e.pauses.again(lookupOp(asked.ID), time.Now(), minAskAgain, maxAskAgain)
	}
	return err
}

// evidenceOf reads the call log's word. "Not in the log" proves that nothing was
// sent only when the log reaches back to the intent.
func evidenceOf(a session.Action, found *brokerv1.LookupActionResponse, failure error) (execution.Knower, outcome) {
	switch {
	case failure != nil:
		return execution.Nobody, outcome{}
	case found.State == brokerv1.CallState_CALL_STATE_SENT && found.Final:
		return execution.LogLost, outcome{evidence: "the broker's call log: it was sent, and no answer came"}
	case found.State == brokerv1.CallState_CALL_STATE_SENT:
		return execution.LogOpen, outcome{}
	case found.State == brokerv1.CallState_CALL_STATE_ABSENT && (found.LogSinceUs <= 0 || found.LogSinceUs > a.IntentAt.UnixMicro()):
		return execution.Nobody, outcome{}
	case found.State == brokerv1.CallState_CALL_STATE_ABSENT:
		return execution.LogAbsent, outcome{event: session.ActionFail, evidence: "the broker's call log has no sending of it", result: refuse(a.CallID, statusFailed,
			protocol.CodeUnavailable, "It did not run: the server or the broker stopped before it was sent. It may be called again.")}
	case saysNo(found) && sentBefore(a):
		return execution.LogOpen, outcome{} // the log has the last answer only
	case unsure(a, found):
		return execution.LogLost, outcome{evidence: "the broker's call log: answered with " + answerOf(found.HttpStatus, found.Failed) + notOfTheEffect}
	}
	r := &runtimev1.ToolResult{CallId: a.CallID, Status: statusOK,
		Text: fmt.Sprintf("It was done and answered with HTTP %d. The answer's text was lost (digest %s).", found.HttpStatus, found.BodyDigest)}
	ev, said := session.ActionSucceed, answerOf(found.HttpStatus, found.Failed)
	if saysNo(found) {
		ev, r.Status, r.Code = session.ActionFail, statusFailed, string(statusCode(found.HttpStatus))
		r.Text = fmt.Sprintf("It was answered with %s. The answer's text was lost (digest %s).", said, found.BodyDigest)
	}
	return execution.LogAnswered, outcome{event: ev, result: r, evidence: "the broker's call log: answered with " + said + ", body " + found.BodyDigest}
}

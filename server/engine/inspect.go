package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// An inspector looks whether an effect happened. That of files.write is on the
// machine itself, which compares digests; that of an http tool is the look-up
// request that its definition declares, sent here.

func inspectOp(id protocol.ActionID) string { return "inspect/" + id.String() }

// hasLookup reports that an action's tool declares a look-up.
func hasLookup(a session.Action, t session.Turn) bool {
	snap, err := policy.DecodeSnapshot(t.Snapshot, t.SnapshotDigest)
	if err != nil {
		return false
	}
	tool, ok := snap.Tool(a.Tool)
	return ok && looked(tool)
}

// looked reports a tool that can be looked up: an http tool by its request, a command on
// a host by the command beside it in the broker's file.
func looked(t policy.Tool) bool {
	return t.HTTP != nil && t.HTTP.Lookup != nil || t.SSH != nil && t.Recovery == runtimev1.Recovery_RECOVERY_INSPECTABLE
}

// startInspect sends the look-up. It is a read of its own, under a capability that
// names it alone, and may be repeated.
func (e *Engine) startInspect(ctx context.Context, a session.Action) error {
	var request *brokerv1.InvokeRequest
	var tool policy.Tool
	err := e.onTurn(ctx, "inspect", a.Turn, func(w *turnTx) error {
		auth, err := w.actionAuthority(a)
		if err != nil {
			return err
		}
		tool, _ = auth.snap.Tool(a.Tool)
		if !looked(tool) {
			return protocol.Errorf(protocol.CodeDataLoss, "action %s has no look-up in its turn's snapshot", a.ID)
		}
		look, err := lookAction(a, tool, newID[protocol.ActionKind](w.e, w.tx.Now))
		if err != nil {
			return err
		}
		token, err := w.e.mint(auth, w.tx.Now, forAction(look))
		if err != nil {
			return err
		}
		request = &brokerv1.InvokeRequest{Capability: token, ActionId: look.ID.String(), Arguments: look.Arguments,
			MaxOutputBytes: auth.snap.Agent.Limits.MaxResultBytes, Tool: lookTool(tool)}
		if tool.SSH != nil {
			request.IdempotencyKey = a.IdempotencyKey
		}
		return nil
	})
	if isTaken(err) || isUngranted(err) {
		return nil // nobody may look any more: the turn ends by its own tick, or the time passes
	} else if err != nil {
		return err
	}
	e.cfg.Ops.Start(inspectOp(a.ID), func(ctx context.Context) {
		resp, err := e.cfg.Broker.Invoke(ctx, request)
		if ctx.Err() != nil {
			return
		}
		e.settled.put(completion{op: inspectOp(a.ID), apply: func(ctx context.Context) error {
			knower, o := seen(a, tool, resp, err, time.Now())
			return e.settleEvidence(ctx, a, knower, o)
		}})
	})
	return nil
}

// placeholders of a look-up.
var placeholders = regexp.MustCompile(`\{([^{}]*)\}`)

// lookTool is the look-up as the broker is told it.
func lookTool(t policy.Tool) *brokerv1.HttpTool {
	if t.SSH != nil {
		look := gatewayTool(t)
		look.Reads, look.Repeatable, look.Ssh.Inspects = true, true, true
		return look
	}
	return &brokerv1.HttpTool{
		Ref: t.Ref, Destination: t.HTTP.Destination, Method: http.MethodGet, Path: t.HTTP.Lookup.Path,
		Credential: t.HTTP.Credential, TimeoutMs: int32(t.HTTP.Timeout.Milliseconds()), Reads: true, Repeatable: true,
	}
}

// timeoutOf a tool that is looked up.
func timeoutOf(t policy.Tool) time.Duration {
	if t.SSH != nil {
		return t.SSH.Timeout
	}
	return t.HTTP.Timeout
}

// lookAction is the look-up as an action of its own: the arguments that its path
// names, and no others.
func lookAction(a session.Action, t policy.Tool, id protocol.ActionID) (session.Action, error) {
	values, err := lookValues(a)
	if err != nil {
		return a, err
	}
	if t.SSH != nil { // the command beside it takes of them what it names
		look := a
		look.ID = id
		return look, nil
	}
	args := map[string]any{}
	for _, m := range placeholders.FindAllStringSubmatch(t.HTTP.Lookup.Path, -1) {
		args[m[1]] = values[m[1]]
	}
	b, err := canonical.Marshal(args)
	if err != nil {
		return a, err
	}
	look := a
	look.ID, look.Arguments, look.ArgumentsDigest = id, string(b), canonical.Digest(b)
	return look, nil
}

// lookValues are what a look-up may name.
func lookValues(a session.Action) (map[string]any, error) {
	values := map[string]any{}
	if err := json.Unmarshal([]byte(a.Arguments), &values); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the arguments of action %s cannot be read: %w", a.ID, err)
	}
	values[policy.KeyPlaceholder] = a.IdempotencyKey
	return values, nil
}

// seen reads the look-up's answer. What is not there yet proves nothing before the
// call itself must have ended: it may be on its way still. INV-5.
func seen(a session.Action, t policy.Tool, resp *brokerv1.InvokeResponse, failure error, now time.Time) (execution.Knower, outcome) {
	if failure != nil {
		return execution.SeenNothing, outcome{}
	}
	there, sure := shows(a, t, resp)
	late := now.Sub(a.DispatchedAt) >= timeoutOf(t)
	evidence := "the look-up answered with " + answerOf(resp.HttpStatus, resp.Failed) + ", body " + resp.BodyDigest
	if resp.ExitStatus != nil {
		evidence = fmt.Sprintf("the look-up ended with exit status %d, output %s", uint32(*resp.ExitStatus), resp.BodyDigest)
	}
	switch {
	case there:
		return execution.SeenDone, outcome{event: session.ActionSucceed, evidence: evidence, result: &runtimev1.ToolResult{
			CallId: a.CallID, Status: statusOK, Text: "It was done: a look afterwards found it. The answer's text was lost."}}
	case sure && late:
		return execution.SeenAbsent, outcome{event: session.ActionFail, evidence: evidence, result: refuse(a.CallID, statusFailed,
			protocol.CodeUnavailable, "It did not happen: a look afterwards did not find it. It may be called again.")}
	}
	return execution.SeenNothing, outcome{}
}

// What the look-up beside a command may say: that the call was done, or that it had not
// begun and cannot begin any more, since the look-up barred its key. A command whose
// connection was cut goes on at the host for as long as it likes, so that nothing is
// found of it, at whatever time, is no proof; and the statuses of shells, closed accounts
// and failures (1, 2, 126, 127, 255) are nobody's word on it. INV-5.
const (
	exitDone   = 0
	exitBarred = 10
)

// shows reports what an answer shows, and whether it shows anything. What is not found
// in a part of a list, or of an answer, may be in the rest: that shows nothing. INV-5.
func shows(a session.Action, t policy.Tool, resp *brokerv1.InvokeResponse) (there, sure bool) {
	if t.SSH != nil {
		exit := resp.ExitStatus
		return exit != nil && *exit == exitDone, exit != nil && (*exit == exitDone || *exit == exitBarred)
	}
	switch status := resp.HttpStatus; {
	case status == http.StatusNotFound || status == http.StatusGone:
		return false, true
	case status < 200 || status > 299:
		return false, false
	}
	mark := t.HTTP.Lookup.Contains
	if mark == "" {
		return true, true
	}
	values, err := lookValues(a)
	if err != nil {
		return false, false
	}
	mark = placeholders.ReplaceAllStringFunc(mark, func(p string) string { return fmt.Sprint(values[strings.Trim(p, "{}")]) })
	there = strings.Contains(string(resp.Body), mark)
	return there, there || !resp.Truncated && resp.Unread == "" && resp.HttpStatus != http.StatusPartialContent
}

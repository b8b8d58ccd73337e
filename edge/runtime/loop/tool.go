package loop

import (
	"fmt"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/loop/schema"
	"bivouac/edge/runtime/runtimev1"
)

// MaxArgumentBytes of one call.
const MaxArgumentBytes = 64 << 10

// nextCall runs the first pending call that may run. A call that may not run has
// its result at once, which tells the model what to correct; when none is left
// the model is asked again.
func (t turn) nextCall() (*runtimev1.LoopState, []Command) {
	for len(t.Pending) > 0 {
		call := t.Pending[0]
		tool, arguments, problem := t.check(call)
		if problem != "" {
			t.settle(bounded(refusal(call.Id, problem), t.Limits.GetMaxResultBytes()))
			if t.correct() {
				return t.tooManyCorrections()
			}
			continue
		}
		if t.ToolCalls >= t.Limits.GetMaxToolCalls() {
			return t.fail(LimitToolCalls, fmt.Sprintf("The turn used all of its %d tool calls.", t.Limits.GetMaxToolCalls()))
		}
		t.ToolCalls++
		t.Phase = runtimev1.Phase_PHASE_TOOL
		return t.LoopState, []Command{callTool(call, tool, arguments)}
	}
	return t.callModel()
}

func callTool(call *runtimev1.ToolCall, tool *runtimev1.Tool, arguments string) CallTool {
	return CallTool{
		Call: &runtimev1.ToolCall{Id: call.Id, Alias: call.Alias, Arguments: arguments},
		Tool: tool,
	}
}

// repeatCall gives the call in flight again. The accepted set may be narrower
// than when it was first given: then it is not repeated, and what it did before
// is unknown, never a failure (INV-5).
func (t turn) repeatCall() (*runtimev1.LoopState, []Command) {
	tool, arguments, problem := t.check(t.Pending[0])
	if problem != "" {
		t.settleInFlight(nil)
		return t.nextCall()
	}
	again := callTool(t.Pending[0], tool, arguments)
	again.Interrupted = true
	return t.LoopState, []Command{again}
}

// check is strict: the alias is one of the accepted set, the arguments are one
// JSON object without repeated keys, and the tool's schema admits them.
func (t turn) check(call *runtimev1.ToolCall) (tool *runtimev1.Tool, arguments, problem string) {
	for _, candidate := range t.Tools {
		if candidate.Alias == call.Alias {
			tool = candidate
		}
	}
	if tool == nil {
		return nil, "", fmt.Sprintf(noTool+"%q. The tools are: %s.", clip(call.Alias), t.aliases())
	}
	if n := len(call.Arguments); n > MaxArgumentBytes {
		return nil, "", fmt.Sprintf(badArguments+"have %d bytes; at most %d are allowed. Send less, or split the call.", n, MaxArgumentBytes)
	}
	b, err := canonical.Canonical([]byte(call.Arguments))
	if err != nil {
		return nil, "", fmt.Sprintf(badArguments+"of %s are malformed: %s. Write one JSON object, {} when there are none.", tool.Alias, err)
	}
	if b[0] != '{' {
		return nil, "", fmt.Sprintf(badArguments+"of %s must be one JSON object.", tool.Alias)
	}
	s, err := schema.Compile(tool.InputSchema)
	if err != nil {
		return nil, "", fmt.Sprintf("The tool %s cannot be used: %s.", tool.Alias, err)
	}
	if err := s.Validate(b); err != nil {
		return nil, "", fmt.Sprintf(badArguments+"of %s do not fit its schema:\n%s", tool.Alias, err)
	}
	return tool, string(b), ""
}

func (t turn) aliases() string {
	if len(t.Tools) == 0 {
		return "none"
	}
	names := make([]string, len(t.Tools))
	for i, tool := range t.Tools {
		names[i] = tool.Alias
	}
	return strings.Join(names, ", ")
}

// refuseAll answers a response in which two calls had one id: it is not known
// which result would belong to which, so nothing runs.
func (t turn) refuseAll() (*runtimev1.LoopState, []Command) {
	for len(t.Pending) > 0 {
		t.settle(refusal(t.Pending[0].Id, "Two calls of your answer had the same id, so none of them ran. Give each call its own id."))
	}
	if t.correct() {
		return t.tooManyCorrections()
	}
	return t.callModel()
}

// toolAnswered takes the one result of the call in flight. An outbound or
// destructive effect of unknown outcome ends the turn UNKNOWN (INV-5); any other
// result, good or bad, goes to the model.
func (t turn) toolAnswered(r *runtimev1.ToolResult) (*runtimev1.LoopState, []Command) {
	effect := t.effect(t.Pending[0].Alias)
	res := bounded(r, t.Limits.GetMaxResultBytes())
	t.settle(res)
	if res.Status == runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN && effect >= runtimev1.Effect_EFFECT_OUTBOUND {
		return t.end(runtimev1.OutcomeKind_OUTCOME_KIND_UNKNOWN, ReasonOutcomeUnknown,
			"It is not known whether an effect outside this machine happened.")
	}
	return t.nextCall()
}

// settleInFlight gives the call in flight its result when the turn ends over it.
func (t turn) settleInFlight(known *runtimev1.ToolResult) {
	if t.Phase != runtimev1.Phase_PHASE_TOOL || len(t.Pending) == 0 {
		return
	}
	call := t.Pending[0]
	switch {
	case known.GetCallId() == call.Id:
		t.settle(bounded(known, t.Limits.GetMaxResultBytes()))
	case t.effect(call.Alias) != runtimev1.Effect_EFFECT_READ:
		t.settle(&runtimev1.ToolResult{CallId: call.Id, Status: runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN,
			Text: textUnknown, Code: string(protocol.CodeOutcomeUnknown)})
	}
}

// settle appends the one result of the first pending call.
func (t turn) settle(r *runtimev1.ToolResult) {
	t.append(resultMessage(r))
	t.Pending = t.Pending[1:]
}

func (t turn) effect(alias string) runtimev1.Effect {
	for _, tool := range t.Tools {
		if tool.Alias == alias {
			return tool.Effect
		}
	}
	return runtimev1.Effect_EFFECT_UNSPECIFIED
}

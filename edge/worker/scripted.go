package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Script of the scripted adapter: the steps in order, as JSON in Spec.script.
// A step has exactly one field. It asks no model unless a step says so.
type Script struct {
	Steps []ScriptStep `json:"steps"`
}

// ScriptStep is one step.
type ScriptStep struct {
	// Tool calls a tool of the spec by its alias.
	Tool *ScriptTool `json:"tool,omitempty"`
	// Model makes one model call with the conversation so far.
	Model bool `json:"model,omitempty"`
	// WaitMS does nothing for so long; negative waits for the end.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Finish completes the turn with this text.
	Finish string `json:"finish,omitempty"`
	// Fail ends the turn with this reason.
	Fail string `json:"fail,omitempty"`
	// Crash ends the worker without finishing.
	Crash bool `json:"crash,omitempty"`
}

// ScriptTool is one call.
type ScriptTool struct {
	Alias     string          `json:"alias"`
	Arguments json.RawMessage `json:"arguments"`
}

// scripted makes the fixed steps of a script: the supervisor can be tested
// without a model. The last result is the text of a turn that does not end itself.
func scripted(ctx context.Context, h *Host, s *runtimev1.Spec) (*runtimev1.Outcome, *runtimev1.LoopState, error) {
	var script Script
	dec := json.NewDecoder(bytes.NewReader(s.Script))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&script); err != nil {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidArgument, "the script cannot be read: %w", err)
	}
	p := &play{host: h, spec: s, state: &runtimev1.LoopState{Model: s.Model, Tools: s.Tools, Limits: s.Limits, Messages: s.Messages}}
	for i, step := range script.Steps {
		outcome, err := p.step(ctx, i, step)
		if outcome != nil || err != nil {
			return outcome, p.state, err
		}
	}
	return &runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED, Text: p.last}, p.state, nil
}

type play struct {
	host  *Host
	spec  *runtimev1.Spec
	state *runtimev1.LoopState
	last  string
}

func (p *play) step(ctx context.Context, i int, s ScriptStep) (*runtimev1.Outcome, error) {
	switch {
	case s.Tool != nil:
		return nil, p.tool(ctx, i, s.Tool)
	case s.Model:
		done, err := p.host.Model(ctx, &runtimev1.ModelRequest{Model: p.spec.Model, Messages: p.state.Messages, Tools: p.spec.Tools, MaxOutputTokens: p.spec.MaxOutputTokens})
		if err != nil {
			return nil, err
		}
		p.state.Messages = append(p.state.Messages, done.Message)
		return nil, p.host.Emit(ctx, eventsOf(done.Message)...)
	case s.WaitMS < 0:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case s.WaitMS > 0:
		return nil, pause(ctx, time.Duration(s.WaitMS)*time.Millisecond)
	case s.Fail != "":
		return &runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: s.Fail, Message: "The script ends the turn."}, nil
	case s.Crash:
		return nil, protocol.Errorf(protocol.CodeInternal, "the script ends the worker")
	}
	return &runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED, Text: s.Finish}, nil
}

func (p *play) tool(ctx context.Context, i int, t *ScriptTool) error {
	call := &runtimev1.ToolCall{Id: "step_" + strconv.Itoa(i), Alias: t.Alias, Arguments: string(t.Arguments)}
	var tool *runtimev1.Tool
	for _, known := range p.spec.Tools {
		if known.Alias == t.Alias {
			tool = known
		}
	}
	started := &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolStarted{ToolStarted: call}}
	if err := p.host.Emit(ctx, started); err != nil {
		return err
	}
	r, err := p.host.Tool(ctx, call, tool, nil)
	if err != nil {
		return err
	}
	p.last = r.GetText()
	p.state.ToolCalls++
	message := &runtimev1.Message{Role: runtimev1.Role_ROLE_TOOL, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolResult{ToolResult: r}}}}
	p.state.Messages = append(p.state.Messages, message)
	return p.host.Emit(ctx, append(eventsOf(message), &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_State{State: p.state}})...)
}

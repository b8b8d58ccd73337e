package provider

import (
	"encoding/json"

	"bivouac/edge/runtime/runtimev1"
)

var anthropicStops = map[string]runtimev1.StopReason{
	"end_turn":                      runtimev1.StopReason_STOP_REASON_END,
	"stop_sequence":                 runtimev1.StopReason_STOP_REASON_END,
	"tool_use":                      runtimev1.StopReason_STOP_REASON_TOOL_CALLS,
	"max_tokens":                    runtimev1.StopReason_STOP_REASON_LENGTH,
	"model_context_window_exceeded": runtimev1.StopReason_STOP_REASON_LENGTH,
}

// anthropicReader reads Anthropic Messages. Its end marker is message_stop, and
// nothing else is one: a stop reason alone may be followed by nothing.
type anthropicReader struct {
	*builder
	blocks map[int]*builtCall // tool_use blocks by index; nil for other blocks
}

func (a *anthropicReader) mayEnd() bool { return false }

func (a *anthropicReader) event(data []byte) (done bool, err error) {
	var e anthropicEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, a.unreadable("an event is no JSON")
	}
	switch e.Type {
	case "message_start":
		if e.Message != nil && e.Message.Usage != nil {
			a.count(e.Message.Usage.usage(false)) // the input is known at the beginning
		}
	case "content_block_start":
		return false, a.blockStart(e)
	case "content_block_delta":
		return false, a.delta(e)
	case "message_delta":
		if e.Usage != nil {
			a.count(e.Usage.usage(true))
		}
		if e.Delta != nil {
			return false, a.finish(e.Delta.StopReason)
		}
	case "message_stop":
		return true, nil
	case "error":
		kind := ""
		if e.Error != nil {
			kind = e.Error.Type
		}
		return false, a.said(kind, data)
	case "content_block_stop", "ping":
	case "":
		return false, a.unreadable("an event names no type")
	}
	// Event types that do not exist yet are passed over, as the format asks.
	return false, nil
}

func (a *anthropicReader) blockStart(e anthropicEvent) error {
	if e.Block == nil {
		return a.unreadable("a content block begins without one")
	}
	if a.blocks == nil {
		a.blocks = map[int]*builtCall{}
	}
	if _, twice := a.blocks[e.Index]; twice || e.Index < 0 || len(a.blocks) > 4*maxCalls {
		return a.unreadable("a content block has index %d", e.Index)
	}
	call, err := a.part(*e.Block)
	a.blocks[e.Index] = call
	return err
}

// part takes a block as it begins: text may be in it already, the input of a call
// is a placeholder that deltas fill.
func (a *anthropicReader) part(p anthropicPart) (*builtCall, error) {
	switch p.Type {
	case "text":
		return nil, a.addText(p.Text)
	case "tool_use":
		c, err := a.call(len(a.calls))
		if err != nil {
			return nil, err
		}
		c.id, c.name = p.ID, p.Name
		return c, nil
	}
	// Thinking is not asked for, and tools of the provider's own are not offered;
	// what comes of either is no part of the answer.
	return nil, nil
}

func (a *anthropicReader) delta(e anthropicEvent) error {
	call, begun := a.blocks[e.Index]
	switch {
	case !begun || e.Delta == nil:
		return a.unreadable("a delta belongs to no content block")
	case e.Delta.Type == "text_delta":
		return a.addText(e.Delta.Text)
	case e.Delta.Type == "input_json_delta" && call != nil:
		return a.addArguments(call, e.Delta.PartialJSON)
	}
	return nil
}

func (a *anthropicReader) finish(reason string) error {
	switch reason {
	case "":
		return nil
	case "refusal":
		return a.filtered("declined to answer")
	case "pause_turn":
		return a.unreadable("it paused for a tool of its own, which it was not offered")
	}
	stop, known := anthropicStops[reason]
	if !known {
		return a.unreadable("the stop reason is %q", clip(a.redactor.Text(reason)))
	}
	a.stopped(stop)
	return nil
}

func (a *anthropicReader) whole(body []byte) error {
	var e anthropicEvent
	if err := json.Unmarshal(body, &e); err != nil || e.Type != "message" {
		return a.unreadable("its answer is no message")
	}
	if e.Usage != nil {
		a.count(e.Usage.usage(true))
	}
	for _, p := range e.Content {
		call, err := a.part(p)
		if err == nil && call != nil {
			err = a.addArguments(call, string(p.Input))
		}
		if err != nil {
			return err
		}
	}
	return a.finish(e.StopReason)
}

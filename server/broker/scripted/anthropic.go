package scripted

import (
	"encoding/json"
	"slices"
)

// anthropicRequest is the part of an Anthropic Messages request that matters here.
type anthropicRequest struct {
	Model     string          `json:"model"`
	MaxTokens int             `json:"max_tokens"`
	System    json.RawMessage `json:"system"`
	Messages  []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name        string          `json:"name"`
		InputSchema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
	Stream bool `json:"stream"`
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

// readAnthropic is as strict as the real one where a client gets it wrong: roles
// are user and assistant, a limit is given, every call has its result in the next
// message.
func readAnthropic(body []byte) *asked {
	var r anthropicRequest
	if json.Unmarshal(body, &r) != nil || len(r.Messages) == 0 || r.MaxTokens < 1 {
		return nil
	}
	c := seen{conversation: conversation{model: r.Model, system: textOf(r.System)}}
	var open []string // calls without a result
	for _, m := range r.Messages {
		blocks := anthropicBlocks(m.Content)
		if len(blocks) == 0 || (m.Role != "user" && m.Role != "assistant") {
			return nil
		}
		text, returned := "", false
		for _, b := range blocks {
			switch {
			case b.Type == "text" && b.Text != "":
				text += b.Text
			case b.Type == "tool_use" && m.Role == "assistant":
				c.called(b.ID, b.Name)
				open = append(open, b.ID)
			case b.Type == "tool_result" && m.Role == "user" && slices.Contains(open, b.ToolUseID):
				open, returned = slices.DeleteFunc(open, func(id string) bool { return id == b.ToolUseID }), true
				c.returned(b.ToolUseID, textOf(b.Content))
			default:
				return nil
			}
		}
		if m.Role == "user" && len(open) > 0 {
			return nil
		}
		if m.Role == "user" && (text != "" || !returned) {
			c.said(text)
		}
	}
	for _, t := range r.Tools {
		c.offer(t.Name, t.InputSchema)
	}
	return &asked{conversation: c.conversation, streamed: r.Stream}
}

func anthropicBlocks(content json.RawMessage) (out []anthropicBlock) {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []anthropicBlock{{Type: "text", Text: text}}
	}
	if json.Unmarshal(content, &out) != nil {
		return nil
	}
	return out
}

type object = map[string]any

// anthropicPen writes Anthropic Messages: blocks with their deltas, then the stop
// reason with the usage, then message_stop.
type anthropicPen struct {
	*stream
	index int // of the newest block
	open  bool
}

func (p *anthropicPen) event(kind string, fields object) bool {
	fields["type"] = kind
	p.line("event: " + kind + "\n")
	return p.data(fields)
}

func (p *anthropicPen) usage(output int64) object {
	return object{
		"input_tokens":                p.used.Input - p.used.CacheRead - p.used.CacheWrite,
		"cache_creation_input_tokens": p.used.CacheWrite, "cache_read_input_tokens": p.used.CacheRead, "output_tokens": output,
	}
}

func (p *anthropicPen) message(content []any, stop any, output int64) object {
	return object{"id": "msg_" + p.id, "type": "message", "role": "assistant", "model": p.asked.model,
		"content": content, "stop_reason": stop, "stop_sequence": nil, "usage": p.usage(output)}
}

func (p *anthropicPen) begin() bool {
	return p.event("message_start", object{"message": p.message([]any{}, nil, 1)}) && p.event("ping", object{})
}

func (p *anthropicPen) block(b object) bool {
	if !p.close() {
		return false
	}
	p.open = true
	return p.event("content_block_start", object{"index": p.index, "content_block": b})
}

func (p *anthropicPen) close() bool {
	if !p.open {
		return true
	}
	p.open = false
	p.index++
	return p.event("content_block_stop", object{"index": p.index - 1})
}

func (p *anthropicPen) text(piece string) bool {
	if !p.open && !p.block(object{"type": "text", "text": ""}) {
		return false
	}
	return p.event("content_block_delta", object{"index": p.index, "delta": object{"type": "text_delta", "text": piece}})
}

func (p *anthropicPen) call(_ int, c *calling, half string, first bool) bool {
	if first && !p.block(object{"type": "tool_use", "id": c.id, "name": c.alias, "input": object{}}) {
		return false
	}
	return p.event("content_block_delta", object{"index": p.index, "delta": object{"type": "input_json_delta", "partial_json": half}})
}

func (p *anthropicPen) stop() string {
	switch {
	case p.rule.Length:
		return "max_tokens"
	case len(p.calls) > 0:
		return "tool_use"
	}
	return "end_turn"
}

func (p *anthropicPen) end() {
	if p.close() && p.event("message_delta", object{"delta": object{"stop_reason": p.stop(), "stop_sequence": nil}, "usage": object{"output_tokens": p.used.Output}}) {
		p.event("message_stop", object{})
	}
}

func (p *anthropicPen) whole() any {
	content := []any{}
	if p.all != "" {
		content = append(content, object{"type": "text", "text": p.all})
	}
	for _, c := range p.calls {
		content = append(content, object{"type": "tool_use", "id": c.id, "name": c.alias, "input": json.RawMessage(c.arguments)})
	}
	return p.message(content, p.stop(), p.used.Output)
}

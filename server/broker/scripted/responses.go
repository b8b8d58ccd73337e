package scripted

import (
	"encoding/json"
	"time"
)

// responsesRequest is the part of an OpenAI Responses request that matters here.
type responsesRequest struct {
	Model        string          `json:"model"`
	Instructions string          `json:"instructions"`
	Input        json.RawMessage `json:"input"`
	Tools        []struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"tools"`
	Stream bool `json:"stream"`
}

type responsesItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	CallID  string          `json:"call_id"`
	Name    string          `json:"name"`
	Output  json.RawMessage `json:"output"`
}

func readResponses(body []byte) *asked {
	var r responsesRequest
	if json.Unmarshal(body, &r) != nil || len(r.Input) == 0 {
		return nil
	}
	c := seen{conversation: conversation{model: r.Model, system: r.Instructions}}
	for _, item := range responsesItems(r.Input) {
		switch {
		case item.Type == "function_call":
			c.called(item.CallID, item.Name)
		case item.Type == "function_call_output":
			c.returned(item.CallID, textOf(item.Output))
		case item.Role == "user":
			c.said(textOf(item.Content))
		case item.Role == "system", item.Role == "developer":
			c.system += textOf(item.Content)
		case item.Role != "assistant":
			return nil
		}
	}
	for _, t := range r.Tools {
		c.offer(t.Name, t.Parameters)
	}
	return &asked{conversation: c.conversation, streamed: r.Stream}
}

func responsesItems(input json.RawMessage) (out []responsesItem) {
	var text string
	if json.Unmarshal(input, &text) == nil {
		return []responsesItem{{Role: "user", Content: input}}
	}
	if json.Unmarshal(input, &out) != nil {
		return []responsesItem{{}}
	}
	return out
}

// responsesPen writes OpenAI Responses: items with their deltas, then the whole
// response in response.completed or response.incomplete.
type responsesPen struct {
	*stream
	seq     int
	output  []any // items that are done
	written string
	open    bool // a message is being written
}

func (p *responsesPen) event(kind string, fields object) bool {
	fields["type"], fields["sequence_number"] = kind, p.seq
	p.seq++
	p.line("event: " + kind + "\n")
	return p.data(fields)
}

func (p *responsesPen) response(status string, output []any, details any) object {
	r := object{"id": "resp_" + p.id, "object": "response", "created_at": time.Now().Unix(), "model": p.asked.model,
		"status": status, "output": output, "incomplete_details": details, "error": nil, "usage": nil}
	if status != "in_progress" {
		r["usage"] = object{"input_tokens": p.used.Input, "input_tokens_details": object{"cached_tokens": p.used.CacheRead},
			"output_tokens": p.used.Output, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": p.used.Input + p.used.Output}
	}
	return r
}

func (p *responsesPen) begin() bool {
	return p.event("response.created", object{"response": p.response("in_progress", []any{}, nil)}) &&
		p.event("response.in_progress", object{"response": p.response("in_progress", []any{}, nil)})
}

func (p *responsesPen) message(text, status string) object {
	content := []any{}
	if status == "completed" {
		content = append(content, object{"type": "output_text", "text": text, "annotations": []any{}})
	}
	return object{"type": "message", "id": "msg_" + p.id, "role": "assistant", "status": status, "content": content}
}

func functionCall(c *calling, arguments, status string) object {
	return object{"type": "function_call", "id": "fc_" + c.id, "call_id": c.id, "name": c.alias, "arguments": arguments, "status": status}
}

func (p *responsesPen) text(piece string) bool {
	if !p.open {
		p.open = true
		if !p.event("response.output_item.added", object{"output_index": len(p.output), "item": p.message("", "in_progress")}) {
			return false
		}
	}
	p.written += piece
	return p.event("response.output_text.delta", object{"item_id": "msg_" + p.id, "output_index": len(p.output), "content_index": 0, "delta": piece})
}

func (p *responsesPen) closeText() bool {
	if !p.open {
		return true
	}
	p.open = false
	at := len(p.output)
	p.output = append(p.output, p.message(p.written, "completed"))
	return p.event("response.output_text.done", object{"output_index": at, "content_index": 0, "text": p.written}) &&
		p.event("response.output_item.done", object{"output_index": at, "item": p.output[at]})
}

func (p *responsesPen) call(_ int, c *calling, half string, first bool) bool {
	if first && (!p.closeText() || !p.event("response.output_item.added", object{"output_index": len(p.output), "item": functionCall(c, "", "in_progress")})) {
		return false
	}
	at := len(p.output)
	if !p.event("response.function_call_arguments.delta", object{"item_id": "fc_" + c.id, "output_index": at, "delta": half}) || first {
		return first
	}
	p.output = append(p.output, functionCall(c, c.arguments, "completed"))
	return p.event("response.function_call_arguments.done", object{"item_id": "fc_" + c.id, "output_index": at, "arguments": c.arguments}) &&
		p.event("response.output_item.done", object{"output_index": at, "item": p.output[at]})
}

// last is the whole response, and the name of the event that carries it.
func (p *responsesPen) last(output []any) (string, object) {
	if p.rule.Length {
		return "response.incomplete", p.response("incomplete", output, object{"reason": "max_output_tokens"})
	}
	return "response.completed", p.response("completed", output, nil)
}

func (p *responsesPen) end() {
	if p.closeText() {
		kind, r := p.last(p.output)
		p.event(kind, object{"response": r})
	}
}

func (p *responsesPen) whole() any {
	output := []any{}
	if p.all != "" {
		output = append(output, p.message(p.all, "completed"))
	}
	for _, c := range p.calls {
		output = append(output, functionCall(c, c.arguments, "completed"))
	}
	_, r := p.last(output)
	return r
}

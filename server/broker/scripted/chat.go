package scripted

import (
	"encoding/json"
	"time"
)

// chatRequest is the part of a Chat Completions request that matters here.
type chatRequest struct {
	Model    string        `json:"model"`
	Messages []chatMessage `json:"messages"`
	Tools    []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type chatMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  []chatCall      `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

func readChat(body []byte) *asked {
	var r chatRequest
	if json.Unmarshal(body, &r) != nil || len(r.Messages) == 0 {
		return nil
	}
	c := seen{conversation: conversation{model: r.Model}}
	for _, m := range r.Messages {
		switch m.Role {
		case "system", "developer":
			c.system += textOf(m.Content)
		case "user":
			c.said(textOf(m.Content))
		case "assistant":
			for _, call := range m.ToolCalls {
				c.called(call.ID, call.Function.Name)
			}
		case "tool":
			c.returned(m.ToolCallID, textOf(m.Content))
		}
	}
	for _, t := range r.Tools {
		c.offer(t.Function.Name, t.Function.Parameters)
	}
	return &asked{conversation: c.conversation, streamed: r.Stream, includeUsage: r.StreamOptions.IncludeUsage}
}

type chatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage,omitempty"`
}

type chatChoice struct {
	Index        int        `json:"index"`
	Message      *chatReply `json:"message,omitempty"`
	Delta        *chatReply `json:"delta,omitempty"`
	FinishReason *string    `json:"finish_reason"`
}

type chatReply struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
}

type chatUsage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	Details          struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// chatPen writes Chat Completions: pieces, then the finish reason, then the usage
// if it was asked for, then [DONE].
type chatPen struct{ *stream }

func (p *chatPen) completion(object string, c ...chatChoice) chatCompletion {
	if c == nil {
		c = []chatChoice{}
	}
	return chatCompletion{ID: "chatcmpl-" + p.id, Object: object, Created: time.Now().Unix(), Model: p.asked.model, Choices: c}
}

func (p *chatPen) delta(d *chatReply) bool {
	return p.data(p.completion("chat.completion.chunk", chatChoice{Delta: d}))
}

func (p *chatPen) begin() bool {
	empty := ""
	return p.delta(&chatReply{Role: "assistant", Content: &empty})
}

func (p *chatPen) text(piece string) bool { return p.delta(&chatReply{Content: &piece}) }

func (p *chatPen) call(i int, c *calling, half string, first bool) bool {
	part := chatCall{Index: &i, Function: chatFunction{Arguments: half}}
	if first {
		part.ID, part.Type, part.Function.Name = c.id, "function", c.alias
	}
	return p.delta(&chatReply{ToolCalls: []chatCall{part}})
}

func (p *chatPen) finish() *string {
	reason := "stop"
	switch {
	case p.rule.Length:
		reason = "length"
	case len(p.calls) > 0:
		reason = "tool_calls"
	}
	return &reason
}

func (p *chatPen) usage() *chatUsage {
	u := &chatUsage{PromptTokens: p.used.Input, CompletionTokens: p.used.Output, TotalTokens: p.used.Input + p.used.Output}
	u.Details.CachedTokens = p.used.CacheRead
	return u
}

func (p *chatPen) end() {
	p.data(p.completion("chat.completion.chunk", chatChoice{Delta: &chatReply{}, FinishReason: p.finish()}))
	if p.asked.includeUsage {
		c := p.completion("chat.completion.chunk")
		c.Usage = p.usage()
		p.data(c)
	}
	p.line("data: [DONE]\n\n")
}

func (p *chatPen) whole() any {
	m := &chatReply{Role: "assistant"}
	for _, c := range p.calls {
		m.ToolCalls = append(m.ToolCalls, chatCall{ID: c.id, Type: "function", Function: chatFunction{c.alias, c.arguments}})
	}
	if p.all != "" {
		m.Content = &p.all
	}
	c := p.completion("chat.completion", chatChoice{Message: m, FinishReason: p.finish()})
	c.Usage = p.usage()
	return c
}

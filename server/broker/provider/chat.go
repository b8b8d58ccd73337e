package provider

import (
	"encoding/json"
	"strings"

	"bivouac/edge/runtime/runtimev1"
)

// chatRequest is the body of POST /chat/completions.
type chatRequest struct {
	Model               string         `json:"model"`
	Messages            []chatMessage  `json:"messages"`
	Tools               []chatTool     `json:"tools,omitempty"`
	MaxTokens           int32          `json:"max_tokens,omitempty"`
	MaxCompletionTokens int32          `json:"max_completion_tokens,omitempty"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    *string    `json:"content"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

type chatCall struct {
	Index    *int             `json:"index,omitempty"`
	ID       string           `json:"id,omitempty"`
	Type     string           `json:"type,omitempty"`
	Function chatFunctionCall `json:"function"`
}

type chatFunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

func encodeChat(c *Client, model string, r *runtimev1.ModelRequest) (any, error) {
	out := chatRequest{Model: model, Stream: true, StreamOptions: &streamOptions{IncludeUsage: true}}
	if c.cfg.LimitField == "max_completion_tokens" {
		out.MaxCompletionTokens = r.GetMaxOutputTokens()
	} else {
		out.MaxTokens = r.GetMaxOutputTokens()
	}
	for _, m := range r.GetMessages() {
		out.Messages = append(out.Messages, chatMessages(m)...)
	}
	for _, t := range r.GetTools() {
		out.Tools = append(out.Tools, chatTool{Type: "function", Function: chatFunction{t.GetAlias(), t.GetDescription(), schemaOf(t)}})
	}
	return out, nil
}

// chatMessages keep sources in their roles. One neutral message of tool results
// becomes one wire message a result.
func chatMessages(m *runtimev1.Message) []chatMessage {
	switch m.GetRole() {
	case runtimev1.Role_ROLE_SYSTEM, runtimev1.Role_ROLE_USER:
		text, role := textOf(m), "user"
		if m.GetRole() == runtimev1.Role_ROLE_SYSTEM {
			role = "system"
		}
		return []chatMessage{{Role: role, Content: &text}}
	case runtimev1.Role_ROLE_ASSISTANT:
		return []chatMessage{chatAssistant(m)}
	}
	var out []chatMessage
	for _, b := range m.GetBlocks() {
		text := resultText(b.GetToolResult())
		out = append(out, chatMessage{Role: "tool", ToolCallID: b.GetToolResult().GetCallId(), Content: &text})
	}
	return out
}

func chatAssistant(m *runtimev1.Message) chatMessage {
	out := chatMessage{Role: "assistant"}
	for _, b := range m.GetBlocks() {
		if c := b.GetToolCall(); c != nil {
			out.ToolCalls = append(out.ToolCalls, chatCall{ID: c.GetId(), Type: "function", Function: chatFunctionCall{c.GetAlias(), c.GetArguments()}})
		}
	}
	if text := textOf(m); text != "" || len(out.ToolCalls) == 0 {
		out.Content = &text
	}
	return out
}

// chatChunk is one event of a stream, or the whole of an unstreamed answer.
type chatChunk struct {
	Choices []struct {
		Delta        *chatReply `json:"delta"`
		Message      *chatReply `json:"message"`
		FinishReason string     `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		Details          struct {
			CachedTokens int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type chatReply struct {
	Content   *string    `json:"content"`
	Refusal   *string    `json:"refusal"`
	ToolCalls []chatCall `json:"tool_calls"`
}

var chatStops = map[string]runtimev1.StopReason{
	"stop":          runtimev1.StopReason_STOP_REASON_END,
	"tool_calls":    runtimev1.StopReason_STOP_REASON_TOOL_CALLS,
	"function_call": runtimev1.StopReason_STOP_REASON_TOOL_CALLS,
	"length":        runtimev1.StopReason_STOP_REASON_LENGTH,
}

// chatReader reads Chat Completions. Its end marker is [DONE]; a finish reason is
// enough, since some servers end without the marker.
type chatReader struct{ *builder }

func (a *chatReader) mayEnd() bool { return a.ended() }

func (a *chatReader) event(data []byte) (done bool, err error) {
	if string(data) == "[DONE]" {
		return true, nil
	}
	var c chatChunk
	if err := json.Unmarshal(data, &c); err != nil {
		return false, a.unreadable("an event is no JSON")
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return false, a.chatError(c.Error)
	}
	if c.Usage != nil {
		a.count(Usage{Input: c.Usage.PromptTokens, CacheRead: c.Usage.Details.CachedTokens, Output: c.Usage.CompletionTokens, Counted: true})
	}
	for _, choice := range c.Choices[:min(1, len(c.Choices))] {
		reply := choice.Delta
		if reply == nil {
			reply = choice.Message
		}
		if err := a.reply(reply); err != nil {
			return false, err
		}
		if err := a.finish(choice.FinishReason); err != nil {
			return false, err
		}
	}
	return false, nil
}

// chatError is a fault in the middle of a stream: it has no status. What it is
// called differs from server to server.
func (a *chatReader) chatError(body json.RawMessage) error {
	var e struct {
		Type string `json:"type"`
		Code any    `json:"code"`
	}
	kind := ""
	if json.Unmarshal(body, &e) == nil {
		if kind = e.Type; strings.Contains(kind, "rate_limit") || e.Code == "rate_limit_exceeded" || e.Code == float64(429) {
			kind = "rate_limit_error"
		}
	}
	return a.said(kind, []byte(`{"error":`+string(body)+`}`))
}

func (a *chatReader) finish(reason string) error {
	if reason == "" {
		return nil
	}
	if reason == "content_filter" {
		return a.filtered("filtered its answer")
	}
	stop, known := chatStops[reason]
	if !known {
		return a.unreadable("the finish reason is %q", clip(a.redactor.Text(reason)))
	}
	a.stopped(stop)
	return nil
}

func (a *chatReader) reply(r *chatReply) error {
	if r == nil {
		return nil
	}
	for _, piece := range []*string{r.Content, r.Refusal} {
		if piece == nil {
			continue
		}
		if err := a.addText(*piece); err != nil {
			return err
		}
	}
	for _, part := range r.ToolCalls {
		if err := a.part(part); err != nil {
			return err
		}
	}
	return nil
}

// part adds to the call with its index. Servers that leave indexes out begin a
// new call with each name.
func (a *chatReader) part(p chatCall) error {
	i := len(a.calls) - 1
	if p.Index != nil {
		i = *p.Index
	} else if p.Function.Name != "" || i < 0 {
		i = len(a.calls)
	}
	c, err := a.call(i)
	if err != nil {
		return err
	}
	if p.ID != "" {
		c.id = p.ID
	}
	c.name += p.Function.Name
	return a.addArguments(c, p.Function.Arguments)
}

func (a *chatReader) whole(body []byte) error {
	if _, err := a.event(body); err != nil {
		return err
	}
	if !a.ended() {
		return a.unreadable("an answer names no finish reason")
	}
	return nil
}

package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"bivouac/edge/protocol"
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

// Encode is the body for a request. It is exported for golden tests and for the
// broker's estimate of what the input costs.
func (c *ChatCompletions) Encode(model string, r *runtimev1.ModelRequest) ([]byte, error) {
	out := chatRequest{Model: model, Stream: true, StreamOptions: &streamOptions{IncludeUsage: true}}
	if c.cfg.LimitField == "max_completion_tokens" {
		out.MaxCompletionTokens = r.GetMaxOutputTokens()
	} else {
		out.MaxTokens = r.GetMaxOutputTokens()
	}
	for i, m := range r.GetMessages() {
		messages, err := encodeMessage(m)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "message %d of the model request: %w", i+1, err)
		}
		out.Messages = append(out.Messages, messages...)
	}
	if len(out.Messages) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the model request has no message")
	}
	for _, t := range r.GetTools() {
		schema := json.RawMessage(t.GetInputSchema())
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		if !json.Valid(schema) {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the input schema of tool %q is no JSON", t.GetAlias())
		}
		out.Tools = append(out.Tools, chatTool{Type: "function", Function: chatFunction{t.GetAlias(), t.GetDescription(), schema}})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// encodeMessage keeps sources in their roles. One neutral message of tool
// results becomes one wire message a result.
func encodeMessage(m *runtimev1.Message) ([]chatMessage, error) {
	switch m.GetRole() {
	case runtimev1.Role_ROLE_SYSTEM, runtimev1.Role_ROLE_USER:
		text, err := onlyText(m)
		if err != nil {
			return nil, err
		}
		role := "user"
		if m.GetRole() == runtimev1.Role_ROLE_SYSTEM {
			role = "system"
		}
		return []chatMessage{{Role: role, Content: &text}}, nil
	case runtimev1.Role_ROLE_ASSISTANT:
		return encodeAssistant(m)
	case runtimev1.Role_ROLE_TOOL:
		var out []chatMessage
		for _, b := range m.GetBlocks() {
			r := b.GetToolResult()
			if r == nil {
				return nil, fmt.Errorf("a tool message holds something else than tool results")
			}
			text := resultText(r)
			out = append(out, chatMessage{Role: "tool", ToolCallID: r.GetCallId(), Content: &text})
		}
		return out, nil
	}
	return nil, fmt.Errorf("its role is unknown")
}

func onlyText(m *runtimev1.Message) (string, error) {
	var parts []string
	for _, b := range m.GetBlocks() {
		t, ok := b.GetKind().(*runtimev1.Block_Text)
		if !ok {
			return "", fmt.Errorf("tool calls and results have no place in a message of role %s", m.GetRole())
		}
		parts = append(parts, t.Text)
	}
	return strings.Join(parts, "\n\n"), nil
}

func encodeAssistant(m *runtimev1.Message) ([]chatMessage, error) {
	out := chatMessage{Role: "assistant"}
	var text []string
	for _, b := range m.GetBlocks() {
		switch k := b.GetKind().(type) {
		case *runtimev1.Block_Text:
			text = append(text, k.Text)
		case *runtimev1.Block_ToolCall:
			out.ToolCalls = append(out.ToolCalls, chatCall{
				ID: k.ToolCall.GetId(), Type: "function",
				Function: chatFunctionCall{k.ToolCall.GetAlias(), k.ToolCall.GetArguments()},
			})
		default:
			return nil, fmt.Errorf("tool results have no place in an assistant message")
		}
	}
	if joined := strings.Join(text, "\n\n"); joined != "" || len(out.ToolCalls) == 0 {
		out.Content = &joined
	}
	return []chatMessage{out}, nil
}

// statusWords are how a result that is no success begins, so that the model can
// tell a refusal from a fault, and an unknown outcome from a failure (INV-5).
var statusWords = map[runtimev1.ResultStatus]string{
	runtimev1.ResultStatus_RESULT_STATUS_FAILED:  "The tool failed",
	runtimev1.ResultStatus_RESULT_STATUS_DENIED:  "The call was denied and did not run",
	runtimev1.ResultStatus_RESULT_STATUS_SKIPPED: "The call was skipped and did not run",
	runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN: "It is not known whether the call took effect; do not repeat it",
}

func resultText(r *runtimev1.ToolResult) string {
	var b strings.Builder
	if words, ok := statusWords[r.GetStatus()]; ok {
		b.WriteString(words)
		if r.GetCode() != "" {
			b.WriteString(" (" + r.GetCode() + ")")
		}
		b.WriteString(".\n")
	}
	b.WriteString(r.GetText())
	if r.GetTruncated() {
		b.WriteString("\n[truncated]")
	}
	return b.String()
}

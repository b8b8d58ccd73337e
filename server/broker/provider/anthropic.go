package provider

import (
	"encoding/json"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// anthropicRequest is the body of POST /messages.
type anthropicRequest struct {
	Model     string             `json:"model"`
	MaxTokens int32              `json:"max_tokens"`
	System    string             `json:"system,omitempty"`
	Messages  []anthropicMessage `json:"messages"`
	Tools     []anthropicTool    `json:"tools,omitempty"`
	Stream    bool               `json:"stream"`
}

type anthropicMessage struct {
	Role    string           `json:"role"`
	Content []anthropicBlock `json:"content"`
}

// anthropicBlock is a text, a tool_use or a tool_result, by its type.
type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   string          `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
}

type anthropicTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// isError marks results that say no. An unknown outcome is none of them: it is
// never shown as a failure. INV-5.
var isError = map[runtimev1.ResultStatus]bool{
	runtimev1.ResultStatus_RESULT_STATUS_FAILED:  true,
	runtimev1.ResultStatus_RESULT_STATUS_DENIED:  true,
	runtimev1.ResultStatus_RESULT_STATUS_SKIPPED: true,
}

func encodeAnthropic(_ *Client, model string, r *runtimev1.ModelRequest) (any, error) {
	out := anthropicRequest{Model: model, MaxTokens: r.GetMaxOutputTokens(), System: systemText(r), Stream: true}
	results := false // the last message holds tool results alone
	for _, m := range r.GetMessages() {
		blocks, role := anthropicBlocks(m), "user"
		if m.GetRole() == runtimev1.Role_ROLE_ASSISTANT {
			role = "assistant"
		}
		if m.GetRole() == runtimev1.Role_ROLE_SYSTEM || len(blocks) == 0 {
			continue // empty texts are refused by the provider
		}
		// All results of one answer stand in the one message that follows it.
		if tool := m.GetRole() == runtimev1.Role_ROLE_TOOL; tool && results {
			last := &out.Messages[len(out.Messages)-1]
			last.Content = append(last.Content, blocks...)
			continue
		} else {
			results = tool
		}
		out.Messages = append(out.Messages, anthropicMessage{role, blocks})
	}
	if len(out.Messages) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the model request has no message with text")
	}
	for _, t := range r.GetTools() {
		out.Tools = append(out.Tools, anthropicTool{t.GetAlias(), t.GetDescription(), schemaOf(t)})
	}
	return out, nil
}

func anthropicBlocks(m *runtimev1.Message) (out []anthropicBlock) {
	for _, b := range m.GetBlocks() {
		switch k := b.GetKind().(type) {
		case *runtimev1.Block_Text:
			if strings.TrimSpace(k.Text) != "" {
				out = append(out, anthropicBlock{Type: "text", Text: k.Text})
			}
		case *runtimev1.Block_ToolCall:
			out = append(out, anthropicBlock{Type: "tool_use", ID: callID(k.ToolCall.GetId()), Name: k.ToolCall.GetAlias(), Input: object(k.ToolCall.GetArguments())})
		case *runtimev1.Block_ToolResult:
			out = append(out, anthropicBlock{Type: "tool_result", ToolUseID: callID(k.ToolResult.GetCallId()),
				Content: resultText(k.ToolResult), IsError: isError[k.ToolResult.GetStatus()]})
		}
	}
	return out
}

// object is what the format wants as a call's arguments. A model may have written
// something else; the call's result says so, and the call itself is shown empty.
func object(arguments string) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &o) != nil || o == nil {
		return json.RawMessage(`{}`)
	}
	return json.RawMessage(arguments)
}

// anthropicEvent is one event of a stream, or the whole of an unstreamed answer.
type anthropicEvent struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message *struct {
		Usage *anthropicUsage `json:"usage"`
	} `json:"message"`
	Block *anthropicPart `json:"content_block"`
	Delta *struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
		StopReason  string `json:"stop_reason"`
	} `json:"delta"`
	Usage *anthropicUsage `json:"usage"`
	Error *struct {
		Type string `json:"type"`
	} `json:"error"`
	// Of an unstreamed answer.
	Content    []anthropicPart `json:"content"`
	StopReason string          `json:"stop_reason"`
}

type anthropicPart struct {
	Type  string          `json:"type"`
	Text  string          `json:"text"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// anthropicUsage counts cached input beside the rest of the input, not in it.
type anthropicUsage struct {
	InputTokens   int64  `json:"input_tokens"`
	CacheCreation int64  `json:"cache_creation_input_tokens"`
	CacheRead     int64  `json:"cache_read_input_tokens"`
	OutputTokens  *int64 `json:"output_tokens"`
}

func (u *anthropicUsage) usage(final bool) Usage {
	out := Usage{Input: u.InputTokens + u.CacheCreation + u.CacheRead, CacheRead: u.CacheRead, CacheWrite: u.CacheCreation}
	if u.OutputTokens != nil {
		out.Output, out.Counted = *u.OutputTokens, final
	}
	return out
}

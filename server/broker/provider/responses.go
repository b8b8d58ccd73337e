package provider

import (
	"encoding/json"

	"bivouac/edge/runtime/runtimev1"
)

// responsesRequest is the body of POST /responses. Nothing is stored at the
// provider: the whole conversation travels with every request.
type responsesRequest struct {
	Model           string          `json:"model"`
	Instructions    string          `json:"instructions,omitempty"`
	Input           []responsesItem `json:"input"`
	Tools           []responsesTool `json:"tools,omitempty"`
	MaxOutputTokens int32           `json:"max_output_tokens,omitempty"`
	Store           bool            `json:"store"`
	Stream          bool            `json:"stream"`
}

// responsesItem is a message, a function_call or a function_call_output, by its
// type. Items carry no id of the provider's: it keeps nothing that one could name.
type responsesItem struct {
	Type      string  `json:"type"`
	Role      string  `json:"role,omitempty"`
	Content   *string `json:"content,omitempty"`
	CallID    string  `json:"call_id,omitempty"`
	Name      string  `json:"name,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
	Output    *string `json:"output,omitempty"`
}

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	// Strict is false in words: the provider's own default refuses schemas with
	// optional properties.
	Strict bool `json:"strict"`
}

func encodeResponses(_ *Client, model string, r *runtimev1.ModelRequest) (any, error) {
	out := responsesRequest{Model: model, Instructions: systemText(r), MaxOutputTokens: r.GetMaxOutputTokens(), Stream: true}
	for _, m := range r.GetMessages() {
		out.Input = append(out.Input, responsesItems(m)...)
	}
	for _, t := range r.GetTools() {
		out.Tools = append(out.Tools, responsesTool{Type: "function", Name: t.GetAlias(), Description: t.GetDescription(), Parameters: schemaOf(t)})
	}
	return out, nil
}

func responsesItems(m *runtimev1.Message) (out []responsesItem) {
	role := "user"
	switch m.GetRole() {
	case runtimev1.Role_ROLE_SYSTEM:
		return nil // it is the request's instructions
	case runtimev1.Role_ROLE_ASSISTANT:
		role = "assistant"
	}
	if text := textOf(m); text != "" || (role == "user" && m.GetRole() != runtimev1.Role_ROLE_TOOL) {
		out = append(out, responsesItem{Type: "message", Role: role, Content: &text})
	}
	for _, b := range m.GetBlocks() {
		switch k := b.GetKind().(type) {
		case *runtimev1.Block_ToolCall:
			arguments := k.ToolCall.GetArguments()
			out = append(out, responsesItem{Type: "function_call", CallID: callID(k.ToolCall.GetId()), Name: k.ToolCall.GetAlias(), Arguments: &arguments})
		case *runtimev1.Block_ToolResult:
			text := resultText(k.ToolResult)
			out = append(out, responsesItem{Type: "function_call_output", CallID: callID(k.ToolResult.GetCallId()), Output: &text})
		}
	}
	return out
}

// responsesEvent is one event of a stream.
type responsesEvent struct {
	Type     string           `json:"type"`
	Index    int              `json:"output_index"`
	Delta    string           `json:"delta"`
	Item     *responsesOutput `json:"item"`
	Response *responsesReply  `json:"response"`
	Code     string           `json:"code"` // of an event of type error
}

// responsesReply is a response as the provider writes it.
type responsesReply struct {
	Status     string            `json:"status"`
	Output     []responsesOutput `json:"output"`
	Incomplete *struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Error *responsesError `json:"error"`
	Usage *struct {
		InputTokens int64 `json:"input_tokens"`
		Details     struct {
			CachedTokens int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputTokens int64 `json:"output_tokens"`
	} `json:"usage"`
}

type responsesError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// responsesOutput is one item of an answer.
type responsesOutput struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Content   []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	} `json:"content"`
}

func (o responsesOutput) text() (text string) {
	for _, c := range o.Content {
		text += c.Text + c.Refusal
	}
	return text
}

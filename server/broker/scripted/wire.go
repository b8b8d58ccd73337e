package scripted

import (
	"encoding/json"
	"strings"
)

// request is the part of a Chat Completions request that matters here.
type request struct {
	Model         string    `json:"model"`
	Messages      []message `json:"messages"`
	Tools         []tool    `json:"tools"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  []toolCall      `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
}

type tool struct {
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
}

type toolCall struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *used    `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Message      *reply  `json:"message,omitempty"`
	Delta        *reply  `json:"delta,omitempty"`
	FinishReason *string `json:"finish_reason"`
}

type reply struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

type used struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// wireError is OpenAI's error body.
type wireError struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code,omitempty"`
	} `json:"error"`
}

// text of a content that is a string or a list of text parts.
func (m message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	var b strings.Builder
	if json.Unmarshal(m.Content, &parts) == nil {
		for _, p := range parts {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// conversation reads what rules look at.
func (r request) conversation() conversation {
	c := conversation{model: r.Model}
	aliases := map[string]string{}
	for _, m := range r.Messages {
		switch m.Role {
		case "system", "developer":
			c.system += m.text()
		case "user":
			c.user, c.results = m.text(), nil
		case "assistant":
			for _, call := range m.ToolCalls {
				aliases[call.ID] = call.Function.Name
			}
		case "tool":
			c.results = append(c.results, result{aliases[m.ToolCallID], m.text()})
		}
	}
	for _, t := range r.Tools {
		c.offers = append(c.offers, t.Function.Name)
	}
	return c
}

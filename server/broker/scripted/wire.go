package scripted

import (
	"encoding/json"
	"net/http"
	"strings"
)

// dialect is one wire format of the provider.
type dialect struct {
	// header that must be there, besides the key.
	header string
	// read understands a request; nil when it is none.
	read func(body []byte) *asked
	// pen writes answers.
	pen func(s *stream) pen
	// fault is the body of an error.
	fault func(status int, code, text string) any
}

// asked is what matters of a request, in every format.
type asked struct {
	conversation
	streamed     bool
	includeUsage bool
}

// pen writes one answer in a format: the events of a stream, or the whole.
type pen interface {
	begin() bool
	text(piece string) bool
	// call writes one half of a call's arguments; first says which.
	call(i int, c *calling, half string, first bool) bool
	end()
	whole() any
}

// calling is a call with the id that it got.
type calling struct {
	answerCall
	id string
}

var dialects = map[string]dialect{
	"POST /v1/chat/completions": {read: readChat, pen: func(s *stream) pen { return &chatPen{stream: s} }, fault: openAIFault},
	"POST /v1/responses":        {read: readResponses, pen: func(s *stream) pen { return &responsesPen{stream: s} }, fault: openAIFault},
	"POST /v1/messages": {header: "anthropic-version", read: readAnthropic,
		pen: func(s *stream) pen { return &anthropicPen{stream: s} }, fault: anthropicFault},
}

func openAIFault(_ int, code, text string) any {
	return map[string]any{"error": map[string]any{"message": text, "type": "error", "code": code}}
}

func anthropicFault(status int, _, text string) any {
	kind := "api_error"
	switch {
	case status == http.StatusUnauthorized:
		kind = "authentication_error"
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status == 529:
		kind = "overloaded_error"
	case status < 500:
		kind = "invalid_request_error"
	}
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": text}}
}

// textOf a content that is a string or a list of text parts.
func textOf(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	var b strings.Builder
	if json.Unmarshal(content, &parts) == nil {
		for _, p := range parts {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// seen puts a conversation together, whatever the format.
type seen struct {
	conversation
	aliases map[string]string
}

func (c *seen) called(id, alias string) {
	if c.aliases == nil {
		c.aliases = map[string]string{}
	}
	c.aliases[id] = alias
}

func (c *seen) said(text string) { c.user, c.results = text, nil }

func (c *seen) returned(id, text string) {
	c.results = append(c.results, result{c.aliases[id], text})
}

package provider

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/secret"
)

// Names of the wire formats, as broker.hcl writes them.
const (
	OpenAIChat      = "openai-chat"
	OpenAIResponses = "openai-responses"
	Anthropic       = "anthropic"
)

// Formats are all of them.
var Formats = []string{OpenAIChat, OpenAIResponses, Anthropic}

// format is one wire format.
type format struct {
	// speaks is its name for people.
	speaks string
	// path below the base URL.
	path string
	// headers that the format adds to a request.
	headers map[string]string
	// binding of the key when the route says nothing.
	binding secret.Binding
	// encode makes the body; the request was checked.
	encode func(c *Client, model string, r *runtimev1.ModelRequest) (any, error)
	// reader puts one answer together.
	reader func(b *builder) reader
}

// reader understands the events of one answer.
type reader interface {
	// event takes one event; done says that it was the end marker.
	event(data []byte) (done bool, err error)
	// whole takes an answer that was not streamed.
	whole(body []byte) error
	// mayEnd reports whether a stream is whole although its end marker is missing.
	mayEnd() bool
}

var (
	bearer = secret.Binding{Header: "Authorization", Format: "Bearer {value}"}
	apiKey = secret.Binding{Header: "x-api-key", Format: "{value}"}
)

var formats = map[string]format{
	OpenAIChat: {
		speaks: "chat completions", path: "/chat/completions", binding: bearer,
		encode: encodeChat, reader: func(b *builder) reader { return &chatReader{builder: b} },
	},
	OpenAIResponses: {
		speaks: "responses", path: "/responses", binding: bearer,
		encode: encodeResponses, reader: func(b *builder) reader { return &responsesReader{builder: b} },
	},
	Anthropic: {
		speaks: "Anthropic messages", path: "/messages", binding: apiKey,
		headers: map[string]string{"anthropic-version": "2023-06-01"},
		encode:  encodeAnthropic, reader: func(b *builder) reader { return &anthropicReader{builder: b} },
	},
}

// DefaultBinding is how a format's own provider wants its key.
func DefaultBinding(name string) secret.Binding { return formats[name].binding }

// Encode is the body for a request. It is exported for golden tests and for the
// broker's estimate of what the input costs.
func (c *Client) Encode(model string, r *runtimev1.ModelRequest) ([]byte, error) {
	if err := checkRequest(r); err != nil {
		return nil, err
	}
	body, err := c.format.encode(c, model, r)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// checkRequest holds for every format: each source in its role, and system text
// at the head alone.
func checkRequest(r *runtimev1.ModelRequest) error {
	head := true
	for i, m := range r.GetMessages() {
		err := checkMessage(m)
		if m.GetRole() != runtimev1.Role_ROLE_SYSTEM {
			head = false
		} else if !head {
			err = fmt.Errorf("a system message stands behind the conversation's beginning")
		}
		if err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "message %d of the model request: %w", i+1, err)
		}
	}
	if head {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the model request has no message")
	}
	for _, t := range r.GetTools() {
		if s := t.GetInputSchema(); s != "" && !json.Valid([]byte(s)) {
			return protocol.Errorf(protocol.CodeInvalidArgument, "the input schema of tool %q is no JSON", t.GetAlias())
		}
	}
	return nil
}

// may says which blocks have a place in a role.
var may = map[runtimev1.Role]struct{ text, call, result bool }{
	runtimev1.Role_ROLE_SYSTEM:    {text: true},
	runtimev1.Role_ROLE_USER:      {text: true},
	runtimev1.Role_ROLE_ASSISTANT: {text: true, call: true},
	runtimev1.Role_ROLE_TOOL:      {result: true},
}

func checkMessage(m *runtimev1.Message) error {
	allowed, known := may[m.GetRole()]
	if !known {
		return fmt.Errorf("its role is unknown")
	}
	for _, b := range m.GetBlocks() {
		ok := false
		switch b.GetKind().(type) {
		case *runtimev1.Block_Text:
			ok = allowed.text
		case *runtimev1.Block_ToolCall:
			ok = allowed.call
		case *runtimev1.Block_ToolResult:
			ok = allowed.result
		}
		if !ok {
			return fmt.Errorf("a block of kind %T has no place in a message of role %s", b.GetKind(), m.GetRole())
		}
	}
	return nil
}

// textOf the blocks of a message, in paragraphs.
func textOf(m *runtimev1.Message) string {
	var parts []string
	for _, b := range m.GetBlocks() {
		if t, ok := b.GetKind().(*runtimev1.Block_Text); ok {
			parts = append(parts, t.Text)
		}
	}
	return strings.Join(parts, "\n\n")
}

// systemText is what stands at the head of a request.
func systemText(r *runtimev1.ModelRequest) string {
	var parts []string
	for _, m := range r.GetMessages() {
		if m.GetRole() == runtimev1.Role_ROLE_SYSTEM {
			parts = append(parts, textOf(m))
		}
	}
	return strings.Join(parts, "\n\n")
}

// schemaOf a tool's arguments; a tool without one takes none.
func schemaOf(t *runtimev1.Tool) json.RawMessage {
	if t.GetInputSchema() == "" {
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	return json.RawMessage(t.GetInputSchema())
}

var wireID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// callID is an id as a strict provider takes it. A conversation may have begun at
// another provider, with ids of another form.
func callID(id string) string {
	if wireID.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "call_" + hex.EncodeToString(sum[:16])
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

// Wire is the request that every call becomes, without its body and its key.
func (c *Client) Wire() *consul.Request {
	w := &consul.Request{Method: http.MethodPost, Path: c.url.EscapedPath(), Header: c.header()}
	w.Header.Set("Host", c.url.Host)
	if c.cfg.Credential != "" {
		w.Sealed = []string{c.cfg.Binding.Header}
	}
	return w
}

func (c *Client) header() http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "text/event-stream, application/json")
	h.Set("User-Agent", "bivouac-broker")
	for name, value := range c.format.headers {
		h.Set(name, value)
	}
	return h
}

// Known reports a wire format.
func Known(name string) bool { return slices.Contains(Formats, name) }

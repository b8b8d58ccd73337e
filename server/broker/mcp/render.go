package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/gateway"
)

// maxBlocks of one result.
const maxBlocks = 256

// rendered is a result as text for a model: text as it is, structured content as
// JSON, and a note in the place of everything else. Bytes that are not text are
// never passed on, and no link is followed.
func (w *wire) rendered(res *sdk.CallToolResult, limit int) *gateway.Answer {
	if len(res.InputRequests) > 0 || res.RequestState != "" {
		return w.failed(200, "The MCP server asks for input (sampling, elicitation or roots) before it goes on, which is refused. The call was not finished.", limit)
	}
	var parts []string
	for i, c := range res.Content {
		if i == maxBlocks {
			parts = append(parts, fmt.Sprintf("[%d more blocks are left out]", len(res.Content)-i))
			break
		}
		parts = append(parts, w.block(c))
	}
	if text := structured(w.last); text != "" && !repeats(parts, text) {
		parts = append(parts, text)
	}
	a := w.text(strings.Join(parts, "\n\n"), limit)
	a.Failed = res.IsError
	return a
}

// block of a result.
func (w *wire) block(c sdk.Content) string {
	switch c := c.(type) {
	case *sdk.TextContent:
		return c.Text
	case *sdk.ImageContent:
		return w.note("image", c.MIMEType, len(c.Data))
	case *sdk.AudioContent:
		return w.note("audio", c.MIMEType, len(c.Data))
	case *sdk.ResourceLink:
		return fmt.Sprintf("[resource link %s: %s, not fetched]", w.words(c.Name), w.words(c.URI))
	case *sdk.EmbeddedResource:
		if c.Resource == nil {
			return "[an empty resource]"
		}
		if c.Resource.Text != "" || len(c.Resource.Blob) == 0 {
			return fmt.Sprintf("[resource %s]\n%s", w.words(c.Resource.URI), c.Resource.Text)
		}
		return w.note("resource "+w.words(c.Resource.URI), c.Resource.MIMEType, len(c.Resource.Blob))
	}
	return "[a block of a kind that is not known]"
}

func (w *wire) note(what, mime string, n int) string {
	return fmt.Sprintf("[%s, %s, %d bytes: not text, left out]", what, w.words(mime), n)
}

// structured content of a raw result, with its numbers as they are and nothing
// escaped that need not be: what is escaped could not be redacted.
func structured(result json.RawMessage) string {
	var r struct {
		Structured json.RawMessage `json:"structuredContent"`
	}
	if json.Unmarshal(result, &r) != nil || len(r.Structured) == 0 || string(r.Structured) == "null" {
		return ""
	}
	text, err := plain(r.Structured)
	if err != nil {
		return "[structured content that cannot be read]"
	}
	return text
}

func plain(src []byte) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", err
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// repeats reports a text block that says the same: servers repeat structured content
// there for older clients.
func repeats(parts []string, text string) bool {
	for _, p := range parts {
		if same, err := plain([]byte(p)); err == nil && same == text {
			return true
		}
	}
	return false
}

// failed is an answer that says no.
func (w *wire) failed(status int, text string, limit int) *gateway.Answer {
	a := w.text(text, limit)
	a.Status, a.Failed = status, true
	return a
}

func faultText(f *jsonrpc.Error) string {
	return fmt.Sprintf("The MCP server answered with error %d: %s", f.Code, f.Message)
}

// text of an answer, redacted as a whole and then cut. INV-17.
func (w *wire) text(s string, limit int) *gateway.Answer {
	s = w.redactor.Decoded(w.redactor.Text(strings.ToValidUTF8(s, "")))
	a := &gateway.Answer{Status: 200, ContentType: "text/plain; charset=utf-8", Bytes: int64(len(s)), Truncated: len(s) > limit}
	a.Body = []byte(strings.ToValidUTF8(s[:min(len(s), limit)], ""))
	a.Digest = canonical.Digest(a.Body)
	return a
}

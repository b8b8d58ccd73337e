package policy

import (
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"

	"github.com/hashicorp/hcl/v2"
)

// MCPTool is one tool of an MCP server, as it was accepted.
type MCPTool struct {
	Destination string
	// Tool by its exact name.
	Tool string
	// SchemaDigest of the input schema that the server offers for it. InputSchema may
	// be narrower than that one.
	SchemaDigest string
	Credential   string
	Timeout      time.Duration
}

// mcp reads a tool of an MCP server. Its schema is the definition's, and so is what
// the model reads of it: a server that offers something else is not called. INV-10.
func (r *reader) mcp(s section, b *hcl.Block) Tool {
	m := &MCPTool{Timeout: defaultHTTPTimeout}
	t := Tool{Ref: "mcp:" + b.Labels[0], Alias: strings.ReplaceAll(b.Labels[0], ".", "_"), Placement: runtimev1.Placement_PLACEMENT_GATEWAY, MCP: m}
	for _, name := range []string{"method", "path", "body", "idempotency_header"} {
		if s.has(name) {
			r.refuse(s.rangeOf(name), "%s is for kind = \"http\": an MCP tool has the arguments of its input", name)
		}
	}
	r.gateway(s, b, &t)
	s.text("destination", &m.Destination)
	s.text("credential", &m.Credential)
	r.reach(s, m.Destination, m.Credential)
	s.text("tool", &m.Tool)
	if !protocol.MCPToolName(m.Tool) {
		r.refuse(s.rangeOf("tool"), "tool must be the exact name that the server gives it: bivouac mcp tools DESTINATION lists them")
	}
	s.duration("timeout", &m.Timeout, time.Second, maxHTTPTimeout)
	m.SchemaDigest = canonical.Digest([]byte(t.InputSchema))
	s.text("schema_digest", &m.SchemaDigest)
	if !canonical.IsDigest(m.SchemaDigest) {
		r.refuse(s.rangeOf("schema_digest"), "schema_digest must be sha256: and 64 digits, as bivouac mcp tools DESTINATION prints it")
	}
	if t.Recovery == runtimev1.Recovery_RECOVERY_INSPECTABLE {
		r.refuse(s.rangeOf("recovery"), "an MCP tool cannot be looked up: its recovery is \"idempotent\", when the same arguments twice do what they do once, or \"opaque\"")
	}
	return t
}

// Destination of a gateway tool; empty elsewhere.
func (t Tool) Destination() string {
	switch {
	case t.HTTP != nil:
		return t.HTTP.Destination
	case t.MCP != nil:
		return t.MCP.Destination
	case t.SSH != nil:
		return t.SSH.Destination
	}
	return ""
}

// Credential that a gateway tool names; empty without one.
func (t Tool) Credential() string {
	switch {
	case t.HTTP != nil:
		return t.HTTP.Credential
	case t.MCP != nil:
		return t.MCP.Credential
	case t.SSH != nil:
		return t.SSH.Credential
	}
	return ""
}

// InGateway reports a tool that the broker sends.
func (t Tool) InGateway() bool { return t.HTTP != nil || t.MCP != nil || t.SSH != nil }

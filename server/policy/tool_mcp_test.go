package policy

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
)

// mcpAgent is a definition with one tool of an MCP server; changes replace lines of
// the tool, "" leaves one out.
func mcpAgent(changes ...string) string {
	lines := map[string]string{
		"kind": `kind = "mcp"`, "description": `description = "Finds tickets."`, "destination": `destination = "tickets"`, "credential": `credential = "tickets-token"`,
		"tool": `tool = "search"`, "effect": `effect = "R0"`, "recovery": `recovery = "idempotent"`,
		"input": `input = { type = "object", properties = { query = { type = "string" } }, required = ["query"] }`,
	}
	for i := 0; i < len(changes); i += 2 {
		lines[changes[i]] = changes[i+1]
	}
	var body []string
	for _, line := range lines {
		body = append(body, "    "+line)
	}
	return "agent \"assistant\" {\n  profile = \"personal\"\n  instructions = \"Help.\"\n  data_boundary = \"personal\"\n  model { route = \"main\" }\n  tool \"tickets.search\" {\n" +
		strings.Join(body, "\n") + "\n  }\n}\n"
}

const mcpSchema = `{"properties":{"query":{"type":"string"}},"required":["query"],"type":"object"}`

// A model reads the definition's words and the definition's schema, and the pin
// stays with the tool.
func TestMCPTool(t *testing.T) {
	other := "sha256:" + strings.Repeat("ab", 32)
	for name, c := range map[string]struct{ src, digest string }{
		"its own schema": {mcpAgent(), canonical.Digest([]byte(mcpSchema))},
		"narrower":       {mcpAgent("schema_digest", `schema_digest = "`+other+`"`), other},
	} {
		a := parse(t, c.src)
		tool := a.Tools[0]
		want := MCPTool{Destination: "tickets", Tool: "search", SchemaDigest: c.digest, Credential: "tickets-token", Timeout: 30 * time.Second}
		if tool.Ref != "mcp:tickets.search" || tool.MCP == nil || *tool.MCP != want || tool.HTTP != nil || !tool.InGateway() {
			t.Errorf("%s: %+v %+v", name, tool, tool.MCP)
		}
		set, err := AcceptedSet(a, nil)
		if err != nil || len(set) != 1 || set[0].Alias != "tickets_search" || set[0].Description != "Finds tickets." || set[0].InputSchema != mcpSchema ||
			set[0].Destination != "tickets" || set[0].Placement != runtimev1.Placement_PLACEMENT_GATEWAY || set[0].NeedsApproval {
			t.Errorf("%s: %+v %v", name, set, err)
		}
	}
	if set, err := AcceptedSet(parse(t, mcpAgent("effect", `effect = "R3"`)), nil); err != nil || !set[0].NeedsApproval {
		t.Errorf("an outbound effect asks nobody: %+v %v", set, err)
	}
}

// Each refusal's twin is TestMCPTool's definition.
func TestMCPToolRefusals(t *testing.T) {
	parse(t, mcpAgent())
	for name, c := range map[string]struct{ key, line, says string }{
		"wildcard":        {"tool", `tool = "*"`, "exact name"},
		"no name":         {"tool", "", "exact name"},
		"a space":         {"tool", `tool = "search all"`, "exact name"},
		"no schema":       {"input", "", "input is missing"},
		"digest":          {"schema_digest", `schema_digest = "sha256:12"`, "64 digits"},
		"no description":  {"description", "", "description is missing"},
		"no effect":       {"effect", "", "effect is"},
		"looked up":       {"recovery", `recovery = "inspectable"`, "cannot be looked up"},
		"method":          {"method", `method = "POST"`, `for kind = "http"`},
		"path":            {"path", `path = "/x"`, `for kind = "http"`},
		"header":          {"idempotency_header", `idempotency_header = "X"`, `for kind = "http"`},
		"inspector":       {"inspector", `inspector = "true"`, `for kind = "sandbox"`},
		"lookup":          {"lookup", "lookup {\n path = \"/x\"\n }", "lookup is for http tools"},
		"resource":        {"resource", `resource = "file:///x"`, "resources of MCP servers are not used"},
		"prompt":          {"prompt", `prompt = "summary"`, "prompts of MCP servers are not used"},
		"no destination":  {"destination", "", "must name a destination"},
		"value as name":   {"credential", `credential = "tok en"`, "never its value"},
		"never asked, R3": {"effect", "effect = \"R3\"\n approval = \"never\"", "not possible"},
		"timeout":         {"timeout", `timeout = "1h"`, "at most"},
	} {
		_, err := ParseAgent("test.hcl", []byte(mcpAgent(c.key, c.line)))
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	http := strings.Replace(mcpAgent("path", `path = "/x"`), `"mcp"`, `"http"`, 1)
	if _, err := ParseAgent("test.hcl", []byte(http)); err == nil || !strings.Contains(err.Error(), `tool is for kind = "mcp"`) {
		t.Errorf("an http tool with an MCP tool's name: %v", err)
	}
	if _, err := ParseAgent("test.hcl", []byte(strings.Replace(http, "    tool = \"search\"\n", "", 1)+"")); err != nil && strings.Contains(err.Error(), "for kind") {
		t.Errorf("the http twin: %v", err)
	}
}

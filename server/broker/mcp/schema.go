package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
)

// Offer is one tool as a server lists it.
type Offer struct {
	Name        string
	Description string
	// Schema of the arguments in canonical form (RFC 8785), and its digest; empty
	// with a Problem.
	Schema, Digest string
	// Hints of the server, which nobody trusts.
	Hints []string
	// Problem says why no definition can name it.
	Problem string
}

// page is a result of tools/list, read from the server's own bytes: a decoder's
// floats would give two schemas one digest.
type page struct {
	Tools  []listed `json:"tools"`
	Cursor string   `json:"nextCursor"`
}

type listed struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"inputSchema"`
	Annotations struct {
		ReadOnly    *bool `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		Idempotent  *bool `json:"idempotentHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	} `json:"annotations"`
	Execution struct {
		Task string `json:"taskSupport"`
	} `json:"execution"`
}

func readPage(raw json.RawMessage) (page, error) {
	var p page
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, violated("its list of tools cannot be read")
	}
	return p, nil
}

// offer judges one listed tool.
func (b Bounds) offer(t listed) Offer {
	o := Offer{Name: t.Name, Description: t.Description, Hints: t.hints()}
	schema, err := b.schema(t.Schema)
	switch {
	case !protocol.MCPToolName(t.Name):
		o.Problem = "its name has characters that no definition can name"
	case t.Execution.Task == "required":
		o.Problem = "it runs as a task only, which is not supported"
	case err != nil:
		o.Problem = err.Error()
	default:
		o.Schema, o.Digest = string(schema), canonical.Digest(schema)
	}
	return o
}

func (t listed) hints() (out []string) {
	for _, h := range []struct {
		is   *bool
		name string
	}{{t.Annotations.ReadOnly, "read-only"}, {t.Annotations.Destructive, "destructive"}, {t.Annotations.Idempotent, "idempotent"}, {t.Annotations.OpenWorld, "open world"}} {
		if h.is != nil && *h.is {
			out = append(out, h.name)
		}
	}
	return out
}

// schema is the canonical form of an input schema within its bounds.
func (b Bounds) schema(raw json.RawMessage) ([]byte, error) {
	switch {
	case len(raw) == 0 || raw[0] != '{':
		return nil, errors.New("it has no input schema")
	case len(raw) > b.MaxSchema:
		return nil, errors.New("its input schema is too large: max_schema_kib in broker.hcl")
	case shallow(raw, b.MaxSchemaDepth) != nil:
		return nil, errors.New("its input schema is nested too deeply: max_schema_depth in broker.hcl")
	case bytes.Contains(raw, []byte("x-mcp-header")):
		return nil, errors.New("it wants arguments in HTTP headers (x-mcp-header), which is not supported")
	}
	form, err := canonical.Canonical(raw)
	if err != nil {
		return nil, errors.New("its input schema has no canonical form (RFC 8785): a key stands twice, or a number is too exact")
	}
	return form, nil
}

// match finds the one tool that a definition names, as it was accepted. A server
// that has it no more, twice, or with another schema is not called. INV-10.
func (e *Endpoint) match(offers []Offer, name, digest string) error {
	mine := slices.DeleteFunc(slices.Clone(offers), func(o Offer) bool { return o.Name != name })
	const now = "Do not repeat it: use another tool, or say that"
	mend := "bivouac mcp tools " + e.cfg.Name + " shows what it offers; put that into the agent's definition and apply it again"
	switch {
	case len(mine) == 0:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the MCP server of destination %s offers no tool %q any more. %s an admin must look: %s", e.cfg.Name, name, now, mend)
	case mine[0].Problem != "":
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the tool %q of destination %s is not called: %s. %s an admin must look: %s", name, e.cfg.Name, mine[0].Problem, now, mend)
	case mine[0].Digest != digest:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "schema changed: the MCP server of destination %s offers %q with the input schema %s, and the definition was accepted with %s. %s an admin must look: %s",
			e.cfg.Name, name, mine[0].Digest, digest, now, mend)
	}
	return nil
}

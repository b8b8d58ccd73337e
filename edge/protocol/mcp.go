package protocol

import "regexp"

var mcpToolForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`)

// MCPToolName reports an exact name of a tool of an MCP server: the characters that
// MCP gives to them, so no pattern and nothing that a header would have to encode.
// Definitions and the broker hold names against it alike.
func MCPToolName(name string) bool { return mcpToolForm.MatchString(name) }

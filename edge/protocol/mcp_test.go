package protocol

import (
	"strings"
	"testing"
)

// INV-10: an exact name is called, and nothing that could be read as more.
func TestMCPToolName(t *testing.T) {
	for name, want := range map[string]bool{
		"search": true, "a": true, "0": true, "repo/get_issue.v2-x": true, strings.Repeat("a", 128): true,
		"": false, "*": false, "a*": false, ".a": false, "-a": false, "a b": false, "a\n": false, "\na": false, "a\x00": false, "ä": false, "a{b}": false,
		strings.Repeat("a", 129): false,
	} {
		if MCPToolName(name) != want {
			t.Errorf("%.140q: %v", name, !want)
		}
	}
}

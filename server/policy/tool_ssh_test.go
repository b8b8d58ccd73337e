package policy

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// sshAgent is a definition with one command on a host.
func sshAgent(changes ...string) string {
	all := append([]string{"kind", `kind = "ssh"`, "destination", `destination = "web1"`, "credential", `credential = "web1-ssh"`, "tool", `command = "restart"`, "effect", `effect = "R3"`, "recovery", `recovery = "inspectable"`}, changes...)
	return strings.ReplaceAll(mcpAgent(all...), "tickets.search", "web.restart")
}

// A command is named, with its arguments' schema and a credential: what it runs is the
// broker's file.
func TestSSHTool(t *testing.T) {
	a := parse(t, sshAgent("timeout", `timeout = "2m"`))
	tool := a.Tools[0]
	want := SSHTool{Destination: "web1", Command: "restart", Credential: "web1-ssh", Timeout: 2 * time.Minute}
	if tool.Ref != "ssh:web.restart" || tool.Alias != "web_restart" || tool.SSH == nil || *tool.SSH != want || tool.HTTP != nil || tool.MCP != nil || !tool.InGateway() ||
		tool.Destination() != "web1" || tool.Credential() != "web1-ssh" || tool.Recovery != runtimev1.Recovery_RECOVERY_INSPECTABLE {
		t.Errorf("%+v %+v", tool, tool.SSH)
	}
	set, err := AcceptedSet(a, nil)
	if err != nil || len(set) != 1 || set[0].Destination != "web1" || set[0].Placement != runtimev1.Placement_PLACEMENT_GATEWAY || !set[0].NeedsApproval {
		t.Errorf("%+v %v", set, err)
	}
	if set, err := AcceptedSet(parse(t, sshAgent("effect", `effect = "R0"`, "recovery", `recovery = "idempotent"`)), nil); err != nil || set[0].NeedsApproval {
		t.Errorf("a command that reads asks somebody: %+v %v", set, err)
	}
}

// Each refusal's twin is TestSSHTool's definition.
func TestSSHToolRefusals(t *testing.T) {
	for name, c := range map[string]struct{ key, line, says string }{
		"what to run":     {"tool", `command = "systemctl restart web"`, "name of a command block"},
		"no command":      {"tool", "", "name of a command block"},
		"no credential":   {"credential", "", "credential is missing"},
		"no destination":  {"destination", "", "destination"},
		"a path":          {"path", `path = "/x"`, "stands in broker.hcl"},
		"a method":        {"method", `method = "POST"`, "stands in broker.hcl"},
		"a lookup":        {"lookup", "lookup {\n path = \"/x\"\n }", "inspect in broker.hcl"},
		"an MCP tool":     {"schema_digest", `schema_digest = "x"`, `for kind = "mcp"`},
		"an inspector":    {"inspector", `inspector = "true"`, "for kind = \"sandbox\""},
		"no schema":       {"input", "", "input is missing"},
		"of an http tool": {"kind", `kind = "http"`, `command is for kind = "ssh"`},
	} {
		_, err := ParseAgent("test.hcl", []byte(sshAgent(c.key, c.line)))
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

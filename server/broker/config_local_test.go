package broker_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/consul/consultest"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/server/broker"
	"bivouac/server/broker/keyring"
)

func commandFile(mcp, beside string) string {
	return "destination \"notes\" {\n" + beside + "\n  mcp {\n" + mcp + "\n  }\n}\n"
}

const goodCommand = "command = [\"/bin/sh\", \"--db\", \"/usr/share\"]\nread_only = [\"/srv\"]"

// A command is refused what no sandbox may have, in words that say what to do instead.
// INV-12.
func TestCommandsInTheFile(t *testing.T) {
	c, err := broker.ParseConfig([]byte(commandFile(goodCommand, "data_boundaries = [\"personal\"]")), "broker.hcl")
	if err != nil || len(c.Commands()) != 1 {
		t.Fatal(c.Commands(), err)
	}
	const beside = "run a server that needs one by itself, as streamable HTTP"
	for text, want := range map[string]string{
		commandFile(goodCommand, "credential \"key\" {}"):                        beside,
		commandFile(goodCommand+"\nenv = { API_KEY = \"canary\" }", ""):          beside,
		commandFile("command = [\"/bin/sh\", \"--api-key=canary\"]", ""):         beside[:40],
		commandFile(goodCommand, "url = \"https://notes.example\""):              "a command or a url",
		commandFile("command = [\"notes\"]", ""):                                 "absolute path of a program",
		commandFile("command = []", ""):                                          "absolute path of a program",
		commandFile(goodCommand+"\nmemory_mib = -1", ""):                         "memory_mib -1 must be 1 to",
		commandFile(goodCommand+"\npids = 100000", ""):                           "pids 100000 must be 1 to",
		commandFile("read_only = [\"/srv\"]", "url = \"https://notes.example\""): "are for a command",
		commandFile("env = {}", "url = \"https://notes.example\""):               "are for a command",
		commandFile("", ""): "url",
		commandFile(goodCommand, "egress {\n protocol = \"go\"\n }"):       "no egress block",
		commandFile("command = [\"/bin/sh\"]\nread_only = [\"/etc\"]", ""): "may not cover /etc",
	} {
		err := parse(text)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// noSandbox is a machine without one.
type noSandbox struct{ sandbox.Backend }

func (noSandbox) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Problem: "bwrap is not here; apt-get install bubblewrap"}
}

// goodSandbox is a machine with one.
type goodSandbox struct{ sandbox.Backend }

func (goodSandbox) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsRlimit}
}

// A broker does not start with a command that it cannot confine; the doctor says so, and
// finds a program that is missing.
func TestCommandsNeedASandbox(t *testing.T) {
	parsed := func(text string) broker.Config {
		c, err := broker.ParseConfig([]byte(text), "broker.hcl")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	with, without := parsed(commandFile(goodCommand, "")), parsed("")
	if err := with.Confined(t.Context(), noSandbox{}); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "destination notes is a command") || !strings.Contains(err.Error(), "apt-get install bubblewrap") {
		t.Errorf("%v", err)
	}
	if err := with.Confined(t.Context(), goodSandbox{}); err != nil {
		t.Error(err)
	}
	if err := without.Confined(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := with.Confined(t.Context(), goodSandbox{}, "/srv/broker"); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "own folder /srv/broker") || !strings.Contains(err.Error(), "correct read_only") {
		t.Errorf("the broker's folder is shown: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	ports := broker.Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(dir, "calls.log")}
	if _, err := broker.New(with, ports); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "no sandbox") {
		t.Errorf("%v", err)
	}
	ports.Sandbox = goodSandbox{}
	if _, err := broker.New(with, ports); err != nil {
		t.Error(err)
	}
	found := func(text string, b sandbox.Backend) string {
		r := finding.From("broker")
		broker.ExamineCommands(t.Context(), r, parsed(text), b)
		var out []string
		for _, f := range r.All {
			out = append(out, f.Check+" "+string(f.Level))
		}
		return strings.Join(out, ", ")
	}
	gone := strings.Replace(goodCommand, "/bin/sh", "/usr/bin/no-such-server", 1)
	for _, tc := range []struct {
		text string
		b    sandbox.Backend
		want string
	}{
		{commandFile(goodCommand, ""), goodSandbox{}, "tool.notes ok"},
		{commandFile(goodCommand, ""), noSandbox{}, "sandbox problem, tool.notes ok"},
		{commandFile(gone, ""), goodSandbox{}, "tool.notes problem"},
		{"", nil, ""},
	} {
		if got := found(tc.text, tc.b); got != tc.want {
			t.Errorf("%s: %q, not %q", tc.text, got, tc.want)
		}
	}
}

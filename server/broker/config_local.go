package broker

import (
	"cmp"
	"context"
	"strings"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/server/broker/mcp"
)

// local is the program that an mcp block starts; nil: it names none.
func (m *MCP) local() *mcp.Local {
	if m == nil || m.Command == nil {
		return nil
	}
	d := mcp.DefaultLocal
	l := &mcp.Local{Command: m.Command, ReadOnly: m.ReadOnly, MaxOpen: cmp.Or(m.MaxOpen, d.MaxOpen), Limits: d.Limits}
	l.Limits.MemoryBytes = cmp.Or(int64(m.MemoryMiB)<<20, l.Limits.MemoryBytes)
	l.Limits.CPUMillis = cmp.Or(int64(m.CPUMillis), l.Limits.CPUMillis)
	l.Limits.PIDs = cmp.Or(int32(m.PIDs), l.Limits.PIDs)
	l.Limits.DiskBytes = cmp.Or(int64(m.ScratchMiB)<<20, l.Limits.DiskBytes)
	return l
}

// noSecret is what to do with a server that needs one.
const noSecret = "a command runs in a sandbox, and no sandbox ever holds a secret: run a server that needs one by itself, as streamable HTTP, name its url, and bind the credential to that"

// command holds an mcp block against what a program in a sandbox may have.
func (k *check) command(d Destination) {
	m, l := d.MCP, d.MCP.local()
	if len(d.Credentials) > 0 || m.Credential != "" {
		k.bad(d.Range, "mcp: command and credential: %s", noSecret)
	}
	if m.Env != nil {
		k.bad(d.Range, "mcp: a command gets no environment of yours: say settings as arguments, or in a file below read_only; %s", noSecret)
	}
	if d.URL != "" || d.AllowPrivate || d.CAFile != "" {
		k.bad(d.Range, "mcp: a server has a command or a url: this one has both, or a url's allow_private or ca_file")
	}
	for _, err := range l.Check() {
		k.bad(d.Range, "mcp: command: %w", err)
	}
	for _, n := range []struct {
		name     string
		is, most int64
	}{{"max_open", int64(l.MaxOpen), 64}, {"memory_mib", l.Limits.MemoryBytes >> 20, 64 << 10}, {"cpu_millis", l.Limits.CPUMillis, 64_000}, {"pids", int64(l.Limits.PIDs), 4096}, {"scratch_mib", l.Limits.DiskBytes >> 20, 16 << 10}} {
		if n.is < 1 || n.is > n.most {
			k.bad(d.Range, "mcp: %s %d must be 1 to %d", n.name, n.is, n.most)
		}
	}
}

// ofCommands refuses, for a server that is asked by its url, what is for a command.
func (k *check) ofCommands(d Destination) {
	if m := d.MCP; m.ReadOnly != nil || m.Env != nil || m.MaxOpen != 0 || m.MemoryMiB != 0 || m.CPUMillis != 0 || m.PIDs != 0 || m.ScratchMiB != 0 {
		k.bad(d.Range, "mcp: read_only, max_open, memory_mib, cpu_millis, pids and scratch_mib are for a command, and there is none")
	}
}

// Commands are the destinations that run a program in a sandbox, by name.
func (c Config) Commands() (out []string) {
	for _, d := range c.Destinations {
		if d.MCP.local() != nil {
			out = append(out, d.Name)
		}
	}
	return out
}

// Confined refuses a configuration whose commands this machine cannot confine, or that
// are shown one of the broker's own folders: those that are given, and that of its file.
// Without commands nothing is tried.
func (c Config) Confined(ctx context.Context, b sandbox.Backend, private ...string) error {
	names := c.Commands()
	if len(names) == 0 {
		return nil
	}
	if b == nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s is a command, and this broker was given no sandbox to run it in", names[0])
	}
	for _, d := range c.Destinations {
		if l := d.MCP.local(); l != nil {
			if err := l.Exposed(append([]string{c.Dir}, private...)...); err != nil {
				return protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s is a command: %w; correct read_only in broker.hcl", d.Name, err)
			}
		}
	}
	if err := mcp.Usable(b.Probe(ctx)); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s is a command: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// ExamineCommands looks for the programs that the file names, and for the sandbox that
// they run in. None of them is started.
func ExamineCommands(ctx context.Context, r *finding.Report, c Config, b sandbox.Backend) {
	if err := c.Confined(ctx, b); err != nil {
		r.Bad("sandbox", err.Error(), "the broker does not start", "apt-get install bubblewrap  (0.8 or newer; user namespaces must be allowed)")
	}
	for _, d := range c.Destinations {
		l := d.MCP.local()
		if l == nil {
			continue
		}
		if err := l.Missing(); err != nil {
			r.Bad("tool."+d.Name, err.Error(), "its tools fail", "install it there, or correct command and read_only of destination \""+d.Name+"\" in broker.hcl and restart the broker")
			continue
		}
		r.Fine("tool."+d.Name, "%s is there; it runs in a sandbox, and was not started", l.Command[0])
	}
}

package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// lifecycle is what one process and its group promise.
func (c Config) lifecycle(t *testing.T) {
	b := c.New(t)
	t.Run("probe", func(t *testing.T) {
		if r := b.Probe(t.Context()); r.Boundary == "" || r.Limits == "" {
			t.Fatalf("the machine of this test has no usable sandbox: %+v", r)
		}
	})
	t.Run("streams and code", func(t *testing.T) {
		g := group(t, b, roomy)
		p := c.code("cat", "to", "stderr")
		p.Stdin = strings.NewReader("to stdout")
		if r := run(t.Context(), g, p); r.err != nil || r.exit != (sandbox.Exit{}) || r.out != "to stdout" || r.log != "to stderr" {
			t.Errorf("cat: %+v", r)
		}
		if r := run(t.Context(), g, c.code("exit", "7")); r.err != nil || r.exit != (sandbox.Exit{Code: 7}) {
			t.Errorf("exit 7: %+v", r)
		}
	})
	t.Run("output limit", func(t *testing.T) {
		l := roomy
		l.OutputBytes = 10_000
		r := run(t.Context(), group(t, b, l), c.code("spew"))
		if r.err != nil || !r.exit.OutputLimit || r.exit.Timeout || r.exit.Killed || len(r.out) != 10_000 {
			t.Errorf("endless output: %+v, %v, %d bytes", r.exit, r.err, len(r.out))
		}
	})
	t.Run("timeout", func(t *testing.T) {
		l := roomy
		l.Timeout = 100 * time.Millisecond
		r := run(t.Context(), group(t, b, l), c.code("sleep"))
		if r.err != nil || !r.exit.Timeout || r.exit.Killed {
			t.Errorf("a sleeper with a limit: %+v", r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r = run(ctx, group(t, b, roomy), c.code("sleep"))
		if r.err != nil || !r.exit.Timeout || r.exit.Killed {
			t.Errorf("a sleeper with a deadline: %+v", r)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		cause := errors.New("the lease is lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		s := start(t, ctx, group(t, b, roomy), c.code("sleep"))
		cancel(cause)
		if r := s.wait(t); !errors.Is(r.err, cause) || !r.exit.Killed || r.exit.Timeout {
			t.Errorf("a cancelled sleeper: %+v", r)
		}
	})
	t.Run("refusals", func(t *testing.T) { c.refusals(t, b) })
}

// refusals are what a backend must not even try, each beside what it accepts.
func (c Config) refusals(t *testing.T, b sandbox.Backend) {
	for name, l := range map[string]sandbox.Limits{
		"none":      {},
		"no memory": {CPUMillis: 1, PIDs: 1, DiskBytes: 1, Timeout: 1, OutputBytes: 1},
	} {
		if _, err := b.Group(t.Context(), groupID(), l); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("limits with %s: %v", name, err)
		}
	}
	for _, id := range []string{"", "..", "a/b", "-x", strings.Repeat("x", 200)} {
		if _, err := b.Group(t.Context(), id, roomy); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("id %q: %v", id, err)
		}
	}
	g := group(t, b, roomy)
	for name, change := range map[string]func(*sandbox.Process){
		"nothing":              func(*sandbox.Process) {},
		"no command":           func(p *sandbox.Process) { p.Argv = nil },
		"no role":              func(p *sandbox.Process) { p.Role = 0 },
		"worker without":       func(p *sandbox.Process) { p.Role = sandbox.RoleWorker; p.Workspace = "/srv/some/where" },
		"environment":          func(p *sandbox.Process) { p.Env = []string{"novalue"} },
		"protected outside":    func(p *sandbox.Process) { p.Workspace = t.TempDir(); p.Protected = []string{"../x"} },
		"the root as bind":     func(p *sandbox.Process) { p.Binds = []sandbox.Bind{{Host: "/", Inside: "/host"}} },
		"a bind over /proc":    func(p *sandbox.Process) { p.Binds = []sandbox.Bind{{Host: "/usr", Inside: "/proc/x"}} },
		"the root as work":     func(p *sandbox.Process) { p.Workspace = "/" },
		"a relative workspace": func(p *sandbox.Process) { p.Workspace = "some/where" },
	} {
		p := c.code("exit", "0")
		change(&p)
		want := protocol.CodeInvalidArgument
		if name == "nothing" {
			want = ""
		}
		if r := run(t.Context(), g, p); protocol.CodeOf(r.err) != want {
			t.Errorf("a process with %s: %+v, want code %q", name, r, want)
		}
	}
}

// kill is what a group promises when its authority ends.
func (c Config) kill(t *testing.T) {
	b := c.New(t)
	t.Run("all processes", func(t *testing.T) {
		g := group(t, b, roomy)
		first := start(t, t.Context(), g, c.code("sleep"))
		second := start(t, t.Context(), g, c.code("sleep"))
		if err := g.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*started{first, second} {
			if r := s.wait(t); r.err != nil || !r.exit.Killed || r.exit.Timeout || r.exit.OutOfMemory {
				t.Errorf("a killed sleeper: %+v", r)
			}
		}
		r := run(t.Context(), g, c.code("exit", "0"))
		if protocol.CodeOf(r.err) != protocol.CodeFailedPrecondition {
			t.Errorf("a process in a killed group: %+v", r)
		}
		if err := g.Kill(t.Context()); err != nil {
			t.Errorf("a second kill: %v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		id := groupID()
		g, err := b.Group(t.Context(), id, roomy)
		if err != nil {
			t.Fatal(err)
		}
		s := start(t, t.Context(), g, c.code("sleep"))
		for range 2 {
			if err := g.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if r := s.wait(t); !r.exit.Killed {
			t.Errorf("a sleeper in a closed group: %+v", r)
		}
		again, err := b.Group(t.Context(), id, roomy)
		if err != nil {
			t.Fatalf("the id is not free again: %v", err)
		}
		if err := again.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

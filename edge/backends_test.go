package edge

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// grouped is a sandbox with limits of its own, that tells when it is tidied.
type grouped struct {
	provedSandbox
	limits string
	tidied *atomic.Int64
}

func (g grouped) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: g.limits}
}

func (g grouped) Tidy(context.Context) error { g.tidied.Add(1); return nil }

// A folder of control groups that is saved in edge.hcl is in force without a restart:
// the sandbox is looked at anew, the server is told, and both are tidied at the end. A
// change of anything else looks at nothing.
func TestSavedCgroupIsInForce(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var made, tidied atomic.Int64
		m.cfg.Sandbox = grouped{limits: protocol.LimitsRlimit, tidied: &tidied}
		m.cfg.SandboxFunc = func() sandbox.Backend {
			made.Add(1)
			return grouped{limits: protocol.LimitsCgroup, tidied: &tidied}
		}
		m.run()
		m.connected()
		src, err := os.ReadFile(m.dir.Policy())
		if err != nil {
			t.Fatal(err)
		}
		save := func(text string) {
			if err := os.WriteFile(m.dir.Policy(), append([]byte(text+"\n"), src...), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * rulesEvery)
		}
		save("# a word of its owner's")
		if s := m.daemon.Status(); made.Load() != 0 || s.Limits != protocol.LimitsRlimit {
			t.Errorf("before: %d made, limits %q", made.Load(), s.Limits)
		}
		save(`cgroup = "mine"`)
		if s := m.daemon.Status(); made.Load() != 1 || s.Limits != protocol.LimitsCgroup {
			t.Errorf("after: %d made, limits %q", made.Load(), s.Limits)
		}
		if got := get(f, func() string { return f.facts.GetLimits() }); got != protocol.LimitsCgroup {
			t.Errorf("the server was told %q", got)
		}
		if err := m.stop(); err != nil || tidied.Load() != 2 {
			t.Errorf("%v; %d were tidied", err, tidied.Load())
		}
	})
}

// A sandbox that was not seen whole is looked at again, ever more seldom, and taken as it
// is seen then; one that is seen as before is not. What was seen whole is left alone.
func TestSandboxIsLookedAtAgain(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var made, tidied atomic.Int64
		var mended atomic.Bool
		m.cfg.Sandbox = partial{grouped{tidied: &tidied}}
		m.cfg.SandboxFunc = func() sandbox.Backend {
			made.Add(1)
			if mended.Load() {
				return grouped{limits: protocol.LimitsCgroup, tidied: &tidied}
			}
			return partial{grouped{tidied: &tidied}}
		}
		m.run()
		m.connected()
		time.Sleep(5 * lookAgain / 2)
		if s := m.daemon.Status(); made.Load() != 1 || tidied.Load() != 1 || s.Limits != "" {
			t.Errorf("%d looks, %d tidied, limits %q", made.Load(), tidied.Load(), s.Limits)
		}
		time.Sleep(5 * time.Hour)
		if n := made.Load(); n < 8 || n > 10 {
			t.Errorf("%d looks in five hours", n)
		}
		mended.Store(true)
		time.Sleep(lookSeldom + lookAgain)
		if s := m.daemon.Status(); s.Limits != protocol.LimitsCgroup {
			t.Errorf("limits %q after it was mended", s.Limits)
		}
		if got := get(f, func() string { return f.facts.GetLimits() }); got != protocol.LimitsCgroup {
			t.Errorf("the server was told %q", got)
		}
		n := made.Load()
		time.Sleep(lookSeldom + 2*lookAgain)
		if made.Load() != n {
			t.Errorf("%d looks at what was seen whole", made.Load()-n)
		}
	})
}

// partial is a sandbox that was not seen whole.
type partial struct{ grouped }

func (p partial) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Boundary: protocol.BoundaryProcess, Problem: "too busy to see what limits it"}
}

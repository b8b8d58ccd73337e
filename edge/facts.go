package edge

import (
	"context"
	"os"
	"runtime"
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/owner"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// observe finds out what this machine offers: what the sandbox was seen to
// enforce, what the owner allows.
func (d *Daemon) observe(ctx context.Context) {
	report := sandbox.Report{Problem: d.cfg.SandboxProblem}
	if d.cfg.Sandbox != nil {
		report = d.cfg.Sandbox.Probe(ctx)
	}
	d.seen = report
	f := factsOf(d.policy, report)
	f.Version = d.cfg.Version
	f.Actions = d.device.Actions()
	if f.Boundary != "" && d.cfg.Supervisors != nil {
		f.Adapters = d.cfg.Adapters
	} else if f.Boundary != "" {
		f.Boundary, f.SandboxProblem = "", "this daemon was started without supervisors"
	}
	if f.Boundary == "" {
		f.Slots = 0
	}
	d.facts.Store(f)
}

func factsOf(p owner.Policy, r sandbox.Report) *runnerv1.Facts {
	return &runnerv1.Facts{
		Os: runtime.GOOS, Arch: runtime.GOARCH, BootId: bootID(),
		Slots: int32(p.Slots), Boundary: r.Boundary, Limits: r.Limits, SandboxProblem: r.Problem,
		Toolchains: p.ToolchainNames(),
	}
}

// factsNow are the facts with the owner's switch as it stands.
func (d *Daemon) factsNow() *runnerv1.Facts {
	f := proto.CloneOf(d.facts.Load())
	f.Paused = d.paused.Load()
	return f
}

// bootID tells two starts of one machine apart, where the system names them.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

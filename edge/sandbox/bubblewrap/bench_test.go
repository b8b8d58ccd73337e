//go:build linux

package bubblewrap

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/seccomp"
)

// BenchmarkRunTrue runs /bin/true in a sandbox of ours and by bwrap alone with
// the same flags, in turn, so that noise hits both. The target of ratio is 1.5.
func BenchmarkRunTrue(b *testing.B) {
	backend := testBackend()
	l := probeLimits
	l.MemoryBytes, l.CPUMillis, l.PIDs = 1<<30, 4000, 256
	g, err := backend.group(b.Context(), "bench", l)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close(b.Context())
	p := sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/bin/true"}, Env: []string{"PATH=/usr/bin:/bin"}}
	var ours, theirs []time.Duration
	for b.Loop() {
		began := time.Now()
		if e, err := g.Run(b.Context(), p); err != nil || e != (sandbox.Exit{}) {
			b.Fatal(e, err)
		}
		ours = append(ours, time.Since(began))
		began = time.Now()
		if err := alone(g, p); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, time.Since(began))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	mine, bare := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(float64(mine.Microseconds()), "µs/run")
	b.ReportMetric(float64(bare.Microseconds()), "µs/bwrap")
	b.ReportMetric(float64(mine)/float64(bare), "ratio")
}

// alone is what a caller who only starts bwrap and waits would do.
func alone(g *group, p sandbox.Process) error {
	l := &layout{stage: g.stage}
	defer l.close()
	g.backend.confine(l, p)
	if err := g.backend.codeRoot(l, p, g.limits, nil); err != nil {
		return err
	}
	l.add("--remount-ro", "/")
	text, err := seccomp.Code()
	if err != nil {
		return err
	}
	filter, err := l.sealed("seccomp", text)
	if err != nil {
		return err
	}
	l.add("--seccomp", filter)
	cmd := exec.Command("bwrap", append(append(slices.Clone(l.args), "--"), p.Argv...)...)
	cmd.ExtraFiles = l.files
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: uint32(g.backend.cfg.UID), Gid: uint32(g.backend.cfg.GID)}}
	}
	return cmd.Run()
}

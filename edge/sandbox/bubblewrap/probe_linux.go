package bubblewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/seccomp"

	"golang.org/x/sync/errgroup"
)

// Probe makes real sandboxes and reports what they were seen to enforce: the
// boundary if nothing showed through, and a class of limits if memory, processes
// and CPU were each seen to end or hold something. The answer is kept for the
// life of the process, unless ctx ended first.
func (b *Backend) Probe(ctx context.Context) sandbox.Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.report != nil {
		return *b.report
	}
	r, ok := b.seenBefore()
	if !ok {
		r = b.probe(ctx)
	}
	if ctx.Err() == nil {
		b.report = &r
	}
	return r
}

// seenBefore is what another process saw, where this one can do the same: what it saw in
// control groups says nothing where this one has none. INV-11.
func (b *Backend) seenBefore() (r sandbox.Report, ok bool) {
	if b.cfg.SeenFunc == nil {
		return r, false
	}
	if r = b.cfg.SeenFunc(); r.Boundary == "" || r.Rootless != b.keepsUID {
		return r, false
	}
	_, noGroups := b.detect()
	return r, noGroups == nil || r.Limits != protocol.LimitsCgroup && r.Freezer == ""
}

func (b *Backend) probe(ctx context.Context) sandbox.Report {
	r := sandbox.Report{Rootless: b.keepsUID}
	if err := b.usable(ctx); err != nil {
		r.Problem = err.Error()
		return r
	}
	class := protocol.LimitsCgroup
	_, noGroups := b.detect()
	if noGroups != nil {
		class = protocol.LimitsRlimit
	}
	var limited error
	all, actx := errgroup.WithContext(ctx)
	all.Go(func() error { return b.seeConfined(actx) })
	all.Go(func() error { return b.seeKilled(actx) })
	all.Go(func() error { limited = b.seeLimited(actx, class); return nil })
	all.Go(func() error { r.Freezer = b.seeFrozen(actx); return nil })
	if err := all.Wait(); err != nil {
		r.Problem, r.Freezer = err.Error(), ""
		return r
	}
	r.Boundary, r.Disk = protocol.BoundaryProcess, sandbox.DiskWatched
	if b.seeSized(ctx) {
		r.Disk = sandbox.DiskSized
	}
	switch {
	case limited != nil:
		r.Problem = "limits were not seen to hold: " + limited.Error()
		return r
	case noGroups != nil:
		r.Problem = "limits hold for single processes only: " + noGroups.Error()
	}
	r.Limits = class
	return r
}

// minVersion is the first release with --bind-fd, --disable-userns and exit
// codes in --json-status-fd.
var minVersion = [2]int{0, 8}

func (b *Backend) usable(ctx context.Context) error {
	path, err := b.bwrap()
	if err != nil {
		return err
	}
	if _, err := seccomp.Code(); err != nil {
		return err
	}
	version := exec.CommandContext(ctx, path, "--version")
	version.Env = []string{}
	out, err := version.Output()
	if errors.Is(err, os.ErrNotExist) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s", remedyInstall)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s --version: %w", path, err)
	}
	var v [2]int
	if _, err := fmt.Sscanf(string(out), "bubblewrap %d.%d", &v[0], &v[1]); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is not bubblewrap: it says %q", path, out)
	}
	if v[0] < minVersion[0] || v[0] == minVersion[0] && v[1] < minVersion[1] {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"%s is version %d.%d and 0.8.0 is needed: apt-get install bubblewrap from a newer release", path, v[0], v[1])
	}
	return nil
}

// probeLimits are small, so that exceeding them is quick. The time is for a slow
// machine that is busy besides.
var probeLimits = sandbox.Limits{
	MemoryBytes: 48 << 20, CPUMillis: 100, PIDs: 12, DiskBytes: 64 << 20,
	Timeout: 30 * time.Second, OutputBytes: 64 << 10,
}

var probes atomic.Int64

// probeID names a group that Sweep leaves alone while this process lives.
func probeID() string { return fmt.Sprintf("%s%d-%d", probePrefix, os.Getpid(), probes.Add(1)) }

// try runs a shell script in a group of its own.
func (b *Backend) try(ctx context.Context, l sandbox.Limits, p sandbox.Process, script string) (sandbox.Exit, string, error) {
	g, err := b.group(ctx, probeID(), l)
	if err != nil {
		return sandbox.Exit{}, "", err
	}
	var out bytes.Buffer
	p.Role, p.Argv, p.Env = sandbox.RoleCode, []string{"/bin/sh", "-c", script}, []string{"PATH=/usr/bin:/bin"}
	p.Stdout = &out
	e, err := g.Run(ctx, p)
	return e, strings.TrimSpace(out.String()), errors.Join(err, g.Close(ctx))
}

// confinedScript prints a line for everything that shows through.
const confinedScript = `
for f in /root /home /var /sys /run /etc/shadow /etc/resolv.conf; do [ -e $f ] && echo "$f of the host is visible"; done
grep -q '^Seccomp:[[:space:]]*2$' /proc/self/status || echo "system calls are not filtered"
grep -q '^NoNewPrivs:[[:space:]]*1$' /proc/self/status || echo "new privileges are possible"
grep -q '^CapEff:[[:space:]]*0*$' /proc/self/status || echo "capabilities are left"
[ "$(grep -c : /proc/net/dev)" = 1 ] || echo "a network is visible"
[ $$ -lt 100 ] || echo "the process ids are the host's"
for f in /x /usr/x /etc/x /dev/x; do (: > $f) 2>/dev/null && echo "$f can be written"; done
: > /workspace/made || echo "the workspace cannot be written"
echo done
`

// seeConfined looks at a sandbox from within, and at a file it made from outside.
func (b *Backend) seeConfined(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bivouac-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	_, out, err := b.try(ctx, probeLimits, sandbox.Process{Workspace: dir}, confinedScript)
	if err != nil {
		return err
	}
	if out != "done" {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the sandbox of this machine leaks: %s",
			strings.ReplaceAll(strings.TrimSuffix(out, "\ndone"), "\n", "; "))
	}
	st, err := os.Lstat(filepath.Join(dir, "made"))
	if err != nil {
		return fmt.Errorf("look at the probe's file: %w", err)
	}
	if s, ok := st.Sys().(*syscall.Stat_t); !ok || s.Uid == 0 && !b.keepsUID {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "sandboxed code has uid 0 on this machine; set another uid for it")
	}
	return nil
}

// seeKilled ends a session leader, a double fork and a daemon.
func (b *Backend) seeKilled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimits.Timeout)
	defer cancel()
	g, err := b.group(ctx, probeID(), probeLimits)
	if err != nil {
		return err
	}
	killed := &killer{group: g, ctx: ctx}
	e, err := g.Run(ctx, sandbox.Process{
		Role: sandbox.RoleCode, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: killed,
		Argv: []string{"/bin/sh", "-c", "setsid sleep 600 & (setsid sh -c 'sleep 600 & exit' &) ; echo up; sleep 600"},
	})
	var left []int
	if g.cgroup != nil {
		var lerr error
		left, lerr = g.cgroup.Processes()
		err = errors.Join(err, lerr)
	}
	err = errors.Join(err, killed.wait(), g.Close(ctx))
	if err == nil && (!e.Killed || len(left) > 0) {
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "a sandbox did not end when killed: %d processes left", len(left))
	}
	return err
}

// killer kills its group at the first output.
type killer struct {
	group *group
	ctx   context.Context
	done  chan error
}

func (k *killer) Write(p []byte) (int, error) {
	if k.done == nil {
		k.done = make(chan error, 1)
		go func() { k.done <- k.group.Kill(k.ctx) }()
	}
	return len(p), nil
}

func (k *killer) wait() error {
	if k.done == nil {
		return errors.New("the process to be killed did not start")
	}
	return <-k.done
}

const (
	memoryScript = `exec tail /dev/zero`
	pidsScript   = `i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; exit 0`
	cpuScript    = `while :; do :; done`
)

// seeLimited exceeds each limit.
func (b *Backend) seeLimited(ctx context.Context, class string) error {
	whole := class == protocol.LimitsCgroup
	roomy := probeLimits
	roomy.CPUMillis = 1000
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		e, _, err := b.try(ctx, roomy, sandbox.Process{}, memoryScript)
		if err == nil && (e.Code == 0 || e.Timeout || e.OutOfMemory != whole) {
			err = protocol.Errorf(protocol.CodeFailedPrecondition, "more memory than allowed was used (%+v)", e)
		}
		return err
	})
	all.Go(func() error {
		e, _, err := b.try(ctx, roomy, sandbox.Process{}, pidsScript)
		if err == nil && (e.Code == 0 || e.Timeout || e.TooManyPIDs != whole) {
			err = protocol.Errorf(protocol.CodeFailedPrecondition, "more processes than allowed were made (%+v)", e)
		}
		return err
	})
	if whole {
		all.Go(func() error { return b.seeThrottled(ctx) })
	}
	return all.Wait()
}

// Bounds of the look at CPU time: how often the kernel is asked, and how long a
// loop may run without being held back before that counts as failure.
const (
	cpuPace = 5 * time.Millisecond
	cpuLook = 20 * time.Second
)

// seeThrottled lets a loop burn CPU until the kernel says that it held it back. It may
// have so little that it gets more of a machine that is very busy.
func (b *Backend) seeThrottled(ctx context.Context) error {
	little := probeLimits
	little.CPUMillis = 20
	g, err := b.group(ctx, probeID(), little)
	if err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(ctx, cpuLook)
	defer cancel()
	held := make(chan bool, 1)
	go func() {
		defer cancel()
		held <- throttled(brief, g)
	}()
	_, err = g.Run(brief, sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/bin/sh", "-c", cpuScript}})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = nil // by ourselves
	}
	cancel()
	seen := <-held
	if err = errors.Join(err, g.Close(ctx)); err == nil && !seen {
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "no control group held back a loop that had more than 2 percent of a core to use, within %s: the machine is too busy to see it, or its kernel does not limit CPU", cpuLook)
	}
	return err
}

func throttled(ctx context.Context, g *group) bool {
	pace := time.NewTicker(cpuPace)
	defer pace.Stop()
	for {
		if c, err := g.cgroup.Counters(); err != nil || c.Throttled > 0 {
			return err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-pace.C:
		}
	}
}

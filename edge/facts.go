package edge

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/legible"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/facts"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// observe finds out what this machine offers: what the sandbox was seen to
// enforce, what the owner allows. What was seen since the machine started is
// believed at first and looked at again beside the other work.
func (d *Daemon) observe(ctx context.Context) {
	if d.cfg.Sandbox == nil {
		d.offers(sandbox.Report{Problem: d.cfg.SandboxProblem})
		return
	}
	boot := bootID()
	seen, ok := d.cfg.State.Seen(boot, d.cfg.Version)
	if !ok {
		d.look(ctx, boot)
		return
	}
	d.offers(seen)
	d.ops.Start("probe", func(ctx context.Context) { d.look(ctx, boot) })
}

// look tries the sandbox.
func (d *Daemon) look(ctx context.Context, boot string) {
	b := d.backends.now()
	r := b.Probe(ctx)
	d.offering.take()
	defer d.offering.leave()
	if ctx.Err() != nil || b != d.backends.now() { // another look is under way
		return
	}
	if err := d.cfg.State.SaveSeen(boot, d.cfg.Version, r); err != nil {
		d.problems.note("state", err)
	}
	d.offerNow(r)
}

// How long after a look that did not see everything the next one comes: at first, and in
// the end.
const (
	lookAgain  = time.Minute
	lookSeldom = time.Hour
)

// tickLook looks again at a sandbox that was not seen whole, ever more seldom: the
// machine may have been too busy for it, or have been mended meanwhile.
func (d *Daemon) tickLook(ctx context.Context) (bool, error) {
	seen := d.seen.Load()
	if seen == nil || seen.Problem == "" || d.cfg.SandboxFunc == nil || d.backends.now() == nil {
		d.lookIn, d.lookAt = 0, 0
		return false, nil
	}
	switch now := d.cfg.Elapsed(); {
	case d.lookAt == 0:
		d.lookIn = lookAgain
	case now < d.lookAt:
		return false, nil
	default:
		d.lookIn = min(2*d.lookIn, lookSeldom)
		if err := d.lookAnew(ctx, *seen); err != nil {
			return false, err
		}
	}
	d.lookAt = d.cfg.Elapsed() + d.lookIn
	return false, nil
}

// lookAnew is a look with nothing kept from the one before. A backend that sees the same
// is not taken.
func (d *Daemon) lookAnew(ctx context.Context, before sandbox.Report) error {
	b := d.cfg.SandboxFunc()
	now := b.Probe(ctx)
	same := now
	same.Problem = before.Problem // its words may differ by a number
	if ctx.Err() != nil || now.Problem != "" && same == before {
		return b.Tidy(context.WithoutCancel(ctx))
	}
	d.log.InfoContext(ctx, "the sandbox is seen otherwise now", "boundary", now.Boundary, "limits", now.Limits, "problem", now.Problem)
	d.backends.use(b)
	d.look(ctx, bootID())
	return nil
}

// offers makes the facts that the server is told.
func (d *Daemon) offers(r sandbox.Report) {
	d.offering.take()
	defer d.offering.leave()
	d.offerNow(r)
}

// offersAnew makes them of what was seen last, if anything was.
func (d *Daemon) offersAnew() {
	d.offering.take()
	defer d.offering.leave()
	if seen := d.seen.Load(); seen != nil {
		d.offerNow(*seen)
	}
}

// offerNow is for who offers: what two found out at a time, the later one with the rules
// before, would be told in the wrong order.
func (d *Daemon) offerNow(r sandbox.Report) {
	in := d.rules.Load()
	f := factsOf(in.policy, r)
	f.Version, f.Actions = d.cfg.Version, in.device.Actions()
	lacks := d.lacks()
	switch {
	case f.Boundary == "":
		f.Slots = 0
	case lacks != "":
		f.Boundary, f.Slots, f.SandboxProblem = "", 0, bounded(legible.Text(lacks), facts.MaxProblem)
	case d.cfg.Supervisors == nil:
		f.Boundary, f.Slots, f.SandboxProblem = "", 0, "this daemon was started without supervisors"
	default:
		f.Adapters, f.Allocations = d.cfg.Adapters, true
		for _, name := range d.cfg.Adapters {
			f.Harnesses = append(f.Harnesses, &runnerv1.Harness{Name: name, Version: d.cfg.Version, Protocol: protocol.WorkerProtocol})
		}
	}
	d.seen.Store(&r)
	if r.Boundary == "" {
		lacks = r.Problem
	}
	d.noteLack(lacks)
	if old := d.facts.Swap(f); !proto.Equal(old, f) {
		d.announced.Store(false)
		d.wakeAnnounce.Ring()
	}
}

// lacks is what keeps turns away from this machine although it has a sandbox, with
// what mends it.
func (d *Daemon) lacks() string {
	if why := d.cfg.MissingFunc(); why != "" {
		return why
	}
	return d.diskFull()
}

// noteLack tells the owner once of what is missing, and of what is there again.
func (d *Daemon) noteLack(now string) {
	if before := d.lack.Swap(&now); before != nil && *before == now || before == nil && now == "" {
		return
	}
	if now == "" {
		d.problems.note("sandbox", nil)
		d.log.Info("turns in sandboxes are taken again")
		return
	}
	d.problems.note("sandbox", protocol.Errorf(protocol.CodeFailedPrecondition, "%s", now))
	d.log.Warn("no turn in a sandbox is taken", "reason", now)
}

// watchLack looks again at what turns need.
func (d *Daemon) watchLack() {
	seen, before := d.seen.Load(), d.lack.Load()
	if seen == nil || seen.Boundary == "" || before == nil {
		return // there is no sandbox, or it is being looked at
	}
	// How much a full disk has left changes, and is not worth a word each time.
	if now := d.lacks(); (now == "") != (*before == "") || now != *before && d.cfg.MissingFunc() != "" {
		d.offersAnew()
	}
}

func factsOf(p owner.Policy, r sandbox.Report) *runnerv1.Facts {
	host, _ := os.Hostname() // for people: it may be unknown
	host, problem := bounded(legible.Line(host), facts.MaxHost), bounded(legible.Text(r.Problem), facts.MaxProblem)
	return &runnerv1.Facts{
		Os: runtime.GOOS, Arch: runtime.GOARCH, BootId: bootID(), Host: host,
		Slots: int32(p.Slots), Boundary: r.Boundary, Limits: r.Limits, SandboxProblem: problem,
		Toolchains: p.ToolchainNames(), Caches: p.CacheNames(), Freezer: r.Freezer, Disk: r.Disk,
		SecondKeys: p.KeyNames(), RefusesEgress: p.RefuseEgress,
		Quota: &runnerv1.RunnerQuota{MaxActiveActions: p.Quota.ActiveActions, MaxTokensPerDay: p.Quota.TokensPerDay},
	}
}

// bounded is as much of s as the server takes: these two words come from the system.
func bounded(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
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

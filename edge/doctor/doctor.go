// Package doctor checks everything that a runner stands on, from the machine on
// which it runs: its state directory and certificate, the owner's file, the way
// to server and broker over each transport, clock, sandbox and limits, git,
// toolchains, the worker, disk and journal, and the daemon itself.
//
// It guarantees that every finding names the command that mends it, that what is
// said of the sandbox was observed, and that a broken part does not hide the
// next. It changes nothing, and asks for nothing but the time and whether the server
// still knows this machine. Test it
// with go test alone; the real sandbox is the backend's to test.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"bivouac/edge"
	"bivouac/edge/finding"
	"bivouac/edge/finding/reach"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

// Config of a doctor. The zero value of what is not said is the machine's own.
type Config struct {
	// Starter is the command that starts server and broker, where they are this
	// machine's and that is known; empty: they are elsewhere.
	Starter string
	// State is the path of the state directory.
	State string
	// Sandbox of this machine; nil: none, with SandboxProblem as the reason.
	Sandbox        sandbox.Backend
	SandboxProblem string
	// Worker is the bivouac-worker binary.
	Worker  string
	Network link.Network
	// ReachTimeout bounds one transport of one peer. Default 4 s.
	ReachTimeout time.Duration
	// LookFunc finds a program; nil: exec.LookPath.
	LookFunc func(name string) (string, error)
	// FreeFunc measures a disk; nil: the system's measure.
	FreeFunc func(path string) (free, whole uint64, err error)
	// StatusFunc asks the running daemon; nil: edge.AskStatus.
	StatusFunc func(context.Context, *state.Dir) (edge.Status, error)
}

// Examine looks at everything and reports it.
func Examine(ctx context.Context, c Config) *finding.Report {
	c.ReachTimeout = cmp.Or(c.ReachTimeout, 4*time.Second)
	if c.LookFunc == nil {
		c.LookFunc = exec.LookPath
	}
	if c.StatusFunc == nil {
		c.StatusFunc = edge.AskStatus
	}
	r := finding.From("edge")
	x := exam{Config: c, Report: r}
	dir, err := state.Open(c.State)
	mend := "bivouac edge invite  (on a machine that is logged in; it prints the command for this one)"
	if protocol.CodeOf(err) == protocol.CodePermissionDenied {
		mend = mendOf(err.Error(), mend)
	}
	if r.Err("state", err, "a runner keeps its key and its journal there", mend) {
		x.sandbox(ctx)
		x.programs(ctx, owner.Default())
		return r
	}
	x.dir = dir
	file, missing := dir.PolicyInForce()
	policy, policyErr := owner.Load(file, dir.Path())
	x.identity()
	if !x.Err("edge.hcl", missing, "what its owner writes there is not read until it is back", dir.PolicyBack()) {
		x.policy(policy, policyErr)
	}
	x.peers(ctx, policy)
	x.sandbox(ctx)
	x.programs(ctx, policy)
	x.disk()
	if x.standing(ctx) {
		x.daemon(ctx)
	}
	return r
}

// exam is one examination.
type exam struct {
	Config
	*finding.Report
	dir       *state.Dir
	enrolment state.Enrolment
	answers   bool           // the server does, over some transport
	seen      sandbox.Report // by this look
}

// identity checks key, certificate and enrolment.
func (x *exam) identity() {
	var err error
	if x.enrolment, err = x.dir.Enrolment(); x.Err("enrolment", err, "without it nobody knows which server this is a runner of", x.dir.Command("join URL CODE")) {
		return
	}
	if _, err := x.dir.Key(false); x.Err("key", err, "the machine is known by it", x.dir.Command("leave --force")+" and join again") {
		return
	}
	if _, err := x.dir.Root(); x.Err("root", err, "server and broker are known by it", x.dir.Command("leave --force")+" and join again") {
		return
	}
	cert, err := x.dir.Certificate()
	if x.Err("certificate", err, "server and broker ask for it", x.dir.Command("run")+"  (recovers it with the device key)") {
		return
	}
	switch left := cert.Leaf.NotAfter.Sub(x.dir.Now()); {
	case left <= 0:
		x.Warn("certificate", "ended "+cert.Leaf.NotAfter.Local().Format(time.RFC1123), "only a recovery by the device key is answered until there is a new one", x.dir.Command("run")+"  (recovers it)")
	case left < 4*time.Hour:
		x.Warn("certificate", fmt.Sprintf("ends in %s, and should have been renewed", left.Round(time.Minute)), "a runner renews at two thirds of its life", x.dir.Command("run"))
	default:
		x.Fine("certificate", "%s, until %s", x.enrolment.Runner, cert.Leaf.NotAfter.Local().Format(time.RFC1123))
	}
}

// policy checks edge.hcl and what it opens.
func (x *exam) policy(p owner.Policy, err error) {
	file := x.dir.Policy()
	if x.Err("edge.hcl", err, "the daemon does not start with it", "edit "+file) {
		return
	}
	if len(p.Folders) == 0 && p.Slots == 0 {
		x.Warn("edge.hcl", file+" allows nothing", "agents can do nothing here", "edit "+file+"  (slots, or a folder block)")
		return
	}
	for _, f := range p.Folders {
		if mend, err := owner.Opens(f.Path); err != nil {
			x.Bad("folder."+f.Name, err.Error(), "device actions in it fail", mend+"  (or take it out of "+file+")")
		}
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		file += " was never there, and what holds without one is in force"
	}
	x.Fine("edge.hcl", "%s: %d slot(s), %d folder(s), %d toolchain(s)", file, p.Slots, len(p.Folders), len(p.Toolchains))
}

// peers tries the way to server and broker.
func (x *exam) peers(ctx context.Context, p owner.Policy) {
	root, err := x.dir.Root()
	if err != nil || x.enrolment.Server == "" {
		return // said by identity
	}
	certificate := x.dir.Certificate
	if _, err := certificate(); err != nil {
		certificate = nil // said by identity; the way to a peer needs none
	}
	to := func(address string, role identity.Role) link.Config {
		return link.Config{
			Address: address, Trust: link.Trust{Role: role, Root: root, Now: x.dir.Now}, Certificate: certificate,
			Network: x.Network, DialTimeout: x.ReachTimeout,
		}
	}
	x.answers = reach.Check(ctx, x.Report, reach.Peer{Check: "server", Who: "the server", Link: to(x.enrolment.Server, identity.RoleServer),
		Start: x.start("bivouac-server"), Elsewhere: x.dir.Command("leave --force") + " and join at its right address"})
	broker, from := cmp.Or(p.Broker, x.enrolment.Broker), "bivouac-server --advertise-broker HOST:PORT, or `broker` in "+x.dir.Policy()
	if broker == "" {
		x.Warn("broker", "the server has not said where the broker is", "turns in sandboxes reach models through it", from)
		return
	}
	if finding.Loopback(broker) && !finding.Loopback(x.enrolment.Server) && p.Broker == "" {
		x.Bad("broker.address", "the server says that the broker is at "+broker+", which is this machine itself", "turns in sandboxes reach models through it",
			"on the server's machine: bivouac dev --broker IP:7402, or "+from)
		return
	}
	reach.Check(ctx, x.Report, reach.Peer{Check: "broker", Who: "the broker", Link: to(broker, identity.RoleBroker), Start: x.start("bivouac-broker run"), Elsewhere: from})
}

// start is what starts a peer: of this machine the whole command, and elsewhere what
// there is to look for, since only who set it up knows how it was started.
func (x *exam) start(alone string) string {
	if x.Starter != "" {
		return x.Starter
	}
	program, _, _ := strings.Cut(alone, " ")
	return "on its machine: bivouac dev, or " + alone + ", which starts as it was started last; " + program + " doctor says there what is missing"
}

// standing asks the server whether this machine is still a runner of it. It reports
// false when it is not: then no daemon helps.
func (x *exam) standing(ctx context.Context) bool {
	if !x.answers {
		return true // said by peers
	}
	if _, err := x.dir.Certificate(); err != nil {
		return true // said by identity
	}
	known, err := edge.Standing(ctx, x.dir, x.Network)
	if known {
		x.Fine("standing", "the server knows this machine as %s", x.enrolment.Runner)
	}
	if protocol.CodeOf(err) != protocol.CodePermissionDenied {
		return true // whoever knows, says so elsewhere
	}
	x.Bad("standing", err.Error(), "the server gives it no work, and no start of the daemon changes that", x.dir.Command("leave --force")+", then "+x.dir.Command("join URL CODE")+" with a new code")
	return false
}

// sandbox says what this machine was seen to enforce.
func (x *exam) sandbox(ctx context.Context) {
	if x.Sandbox == nil {
		x.Warn("sandbox", cmp.Or(x.SandboxProblem, "this build has none for "+runtime.GOOS), "this machine does device actions only", "use a Linux machine for turns in sandboxes")
		return
	}
	rep := x.Sandbox.Probe(ctx)
	x.seen = rep
	const install = "sudo apt-get install bubblewrap"
	switch {
	case rep.Boundary == "":
		x.Bad("sandbox", "none: "+rep.Problem, "this machine does device actions only", mendOf(rep.Problem, install))
	case rep.Limits == protocol.LimitsCgroup:
		x.Fine("sandbox", "boundary %s, limits by cgroup (memory, CPU and processes were seen to kill), disk %s", rep.Boundary, rep.Disk)
	default:
		x.Warn("limits", cmp.Or(rep.Problem, "limits are "+rep.Limits), "untrusted code is not placed on this machine", x.limitsMend(rep.Problem, "run it as root, or in a systemd unit with Delegate=yes  (bivouac-edge join --service writes one)"))
	}
	if rep.Boundary != "" && rep.Freezer == "" {
		x.Warn("freezer", "no sandbox can be frozen here", "one that loses its authority is killed instead of held until the server is back", "mount the unified cgroup hierarchy (cgroup2), or give the daemon a delegated group")
	}
}

// limitsMend is mendOf with the line for edge.hcl that a problem also names.
func (x *exam) limitsMend(problem, otherwise string) string {
	mend := mendOf(problem, otherwise)
	_, line, ok := strings.Cut(problem, ", and say cgroup = ")
	if !ok || x.dir == nil {
		return mend
	}
	file, missing := x.dir.PolicyInForce()
	if p, err := owner.Load(file, x.dir.Path()); missing != nil || err != nil || p.Cgroup != "" {
		return mend // the file names a folder already, or is to be mended first
	}
	line, _, _ = strings.Cut(line, " in edge.hcl")
	return fmt.Sprintf("%s; echo 'cgroup = %s' >> %s", mend, line, x.dir.Policy())
}

// mendOf is the command that a problem's own text ends with, or another.
func mendOf(problem, otherwise string) string {
	if i := strings.LastIndex(problem, "`"); i > 0 {
		if j := strings.LastIndex(problem[:i], "`"); j >= 0 {
			return problem[j+1 : i]
		}
	}
	return otherwise
}

// versionOf a program, which gets nothing of this process's environment.
func versionOf(ctx context.Context, path string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{}
	return cmd.Output()
}

// programs that are run or shown to sandboxed code.
func (x *exam) programs(ctx context.Context, p owner.Policy) {
	needs := edge.Needs{Worker: x.Worker, LookFunc: x.LookFunc}
	if path, err := x.LookFunc("git"); err != nil {
		x.Bad("git", "git is not found", "workspaces are staged, and patches made, with it: no turn is taken", mendOf(needs.GitMissing(), ""))
	} else if out, err := versionOf(ctx, path); err != nil {
		x.Bad("git", path+" does not run: "+err.Error(), "workspaces are staged, and patches made, with it", "sudo apt-get install --reinstall git")
	} else {
		x.Fine("git", "%s", strings.TrimSpace(string(out)))
	}
	for _, t := range p.Toolchains {
		if _, err := os.Stat(t.Path); err != nil {
			x.Bad("toolchain."+t.Name, err.Error(), "sandboxed code expects it", "install it, or take it out of "+x.dir.Policy())
		} else {
			x.Fine("toolchain."+t.Name, "%s", t.Path)
		}
	}
	if x.Sandbox == nil || x.Worker == "" {
		return
	}
	if why := needs.WorkerMissing(); why != "" {
		x.Bad("worker", why, "it runs the loop of sandboxed turns: no turn is taken", "copy bivouac-worker to "+x.Worker+", or name it: bivouac-edge run --worker PATH")
	} else {
		x.Fine("worker", "%s", x.Worker)
	}
}

// disk forecasts the space of the state directory.
func (x *exam) disk() {
	d := finding.Disk{Path: x.dir.Path(), Holds: "journal and attempts", Low: "below 128 MiB this machine claims no new turn and no device action; what runs goes on while its journal can be written", FreeFunc: x.FreeFunc, Mend: "du -xh " + x.dir.Path() + " | sort -h | tail; " + x.dir.Command("status") + "  (shows what holds the journal)"}
	if info, err := os.Stat(x.dir.Journal()); err == nil {
		if key, err := os.Stat(x.dir.Path() + "/device.key"); err == nil {
			info = key // made at join, and never written again
		}
		d.Since = info.ModTime()
	}
	x.Disk(d)
}

// ended says that a daemon of the last day ended by itself, over its journal.
func (x *exam) ended(runs bool) {
	end, ok := x.dir.Ended()
	switch {
	case !ok:
	case runs:
		x.Warn("journal", end.String(), "it was started again and goes on from what is on the disk, which may fail again", "dmesg | tail; df -h "+x.dir.Path()+"  (a disk that loses writes has to be replaced)")
	default:
		x.Bad("journal", end.String(), "this machine takes no work; what it had begun is inspected when it starts", "dmesg | tail; df -h "+x.dir.Path()+"; then "+x.dir.Command("run"))
	}
}

// anew starts a daemon that goes on trying in vain anew, when nothing else said here
// is the reason.
func (x *exam) anew() string {
	return "what the other findings say; if there are none, end bivouac-edge and start it again: " + x.dir.Command("run")
}

// allocations are turns whose supervisors Nomad starts.
func (x *exam) allocations(s edge.Status) {
	var runs, waits []string
	for _, a := range s.Attempts {
		switch {
		case a.Allocation == "":
		case a.State == "waiting":
			waits = append(waits, edge.JobStatus(a.Allocation))
		default:
			runs = append(runs, a.Allocation)
		}
	}
	if len(runs) > 0 {
		x.Fine("allocations", "%d turn(s) run in allocations of their own: %s", len(runs), strings.Join(runs, ", "))
	}
	if len(waits) > 0 {
		x.Fine("allocations.waiting", "%d turn(s) wait for Nomad to start their supervisors, each in a slot of this machine: %s", len(waits), strings.Join(waits, "; "))
	}
}

// daemon asks the running one.
func (x *exam) daemon(ctx context.Context) {
	s, err := x.StatusFunc(ctx, x.dir)
	x.ended(err == nil)
	switch {
	case err != nil:
		x.Warn("daemon", err.Error(), "this machine takes no work", x.dir.Command("run"))
	case s.Paused:
		x.Warn("daemon", "its owner has paused it", "this machine takes no work", x.dir.Command("resume"))
	case !s.Connected && !x.answers:
		x.Bad("daemon", "runs, and is not connected: "+cmp.Or(s.LastError, "no reason known"), "this machine takes no work", x.start("bivouac-server"))
	case !s.Connected:
		x.Bad("daemon", "runs, and is not connected although the server answers: "+cmp.Or(s.LastError, "no reason known"), "this machine takes no work", mendOf(s.LastError, x.anew()))
	case s.PolicyProblem != "" && strings.Contains(s.LastError, s.PolicyProblem):
		x.Fine("daemon", "connected over %s; the last edge.hcl without mistakes is in force", s.Transport) // said by policy
	case s.LastError != "":
		x.Warn("daemon", "connected over "+s.Transport+"; last trouble: "+s.LastError, "some part of it tries again", mendOf(s.LastError, x.anew()))
	default:
		x.Fine("daemon", "connected over %s, epoch %d, journal %d bytes, %d attempt(s)", s.Transport, s.Epoch, s.JournalBytes, len(s.Attempts))
	}
	switch {
	case err != nil || len(s.SecondKeys) == 0:
	case s.Questions > 0:
		x.Warn("second_key", fmt.Sprintf("%d question(s) wait for you", s.Questions), "nothing of it runs before you decide, and it is denied when its time is over", x.dir.Command("approvals"))
	default:
		x.Fine("second_key", "over %s; nothing waits", strings.Join(s.SecondKeys, ", "))
	}
	x.allocations(s)
	if now := x.seen; err == nil && now.Problem == "" && now.Boundary != "" && s.Limits != now.Limits {
		x.Warn("daemon.sandbox", "bivouac-edge saw less of the sandbox than this look: "+cmp.Or(s.SandboxProblem, "it has not looked yet"), "turns are placed by what it saw; it looks again by itself, within an hour",
			x.anew())
	}
	if err == nil && s.Transport == link.HTTP2 {
		x.Warn("daemon.transport", "the link runs over TCP: "+cmp.Or(s.QUICProblem, "UDP was not tried yet"), "one lost packet holds up all streams", x.dir.Command("probe")+"  (tries UDP again now)")
	}
}

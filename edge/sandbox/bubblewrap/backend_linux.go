package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/cgroup"

	"golang.org/x/sys/unix"
)

// Backend makes groups of bubblewrap sandboxes.
type Backend struct {
	cfg Config
	// breach weakens the sandbox so that a test can prove its detector. Nothing
	// but this package's tests can set it.
	breach   breach
	diskPace time.Duration // between two looks at a workspace

	detect func() (*cgroup.Tree, error)
	etc    func() (etcFiles, error)
	// keepsUID: there is no dropping to a dedicated uid.
	keepsUID bool

	mu     sync.Mutex // guards report and, while held, serialises probes
	report *sandbox.Report
}

// breach is one hole each.
type breach struct {
	shareNet          bool
	sharePID          bool
	noSeccomp         bool
	userns            bool // nested user namespaces allowed
	capabilities      bool // all capabilities, in the own user namespace
	hostDevices       bool
	writableProtected bool
	shallowProtected  bool // parents of protected paths can be renamed
	leakDescriptor    bool
	inheritEnv        bool
}

// New makes a backend and starts nothing.
func New(cfg Config) *Backend {
	cfg = cfg.withDefaults()
	b := &Backend{
		cfg: cfg, diskPace: diskPace,
		detect: sync.OnceValues(func() (*cgroup.Tree, error) { return cgroup.Detect(cfg.CgroupParent) }),
		etc:    sync.OnceValues(newEtcFiles),
	}
	b.keepsUID = b.rootless()
	return b
}

// Group makes the control group, where the machine has them, and the thread
// that all processes of the attempt are forked from.
func (b *Backend) Group(ctx context.Context, id string, l sandbox.Limits) (sandbox.Group, error) {
	return b.group(ctx, id, l)
}

func (b *Backend) group(ctx context.Context, id string, l sandbox.Limits) (*group, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := errors.Join(sandbox.ValidateID(id), l.Validate()); err != nil {
		return nil, err
	}
	g := &group{backend: b, id: id, limits: l, running: map[*run]struct{}{}, owned: map[string]bool{}, used: map[string]int64{}}
	g.stage = &stage{idle: b.keepsUID, uid: b.cfg.UID, gid: b.cfg.GID, shown: map[string]string{}}
	join := b.borrowIdentity
	if tree, err := b.detect(); err == nil {
		g.cgroup, err = tree.Create(id, cgroup.Limits{
			MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, PIDs: int64(l.PIDs),
		})
		if errors.Is(err, os.ErrExist) {
			return nil, protocol.Errorf(protocol.CodeAlreadyExists, "a sandbox group %s exists already; sweep it first", id)
		}
		if err != nil {
			return nil, err
		}
		join = func() error { return errors.Join(g.cgroup.Join(), b.borrowIdentity()) }
	}
	var err error
	if g.spawner, err = newSpawner(join); err != nil {
		if g.cgroup != nil {
			err = errors.Join(err, g.cgroup.Remove(ctx))
		}
		return nil, err
	}
	return g, nil
}

// Sweep kills and removes what an earlier process left. A probe of a living
// process is not a leftover.
func (b *Backend) Sweep(ctx context.Context, keep []string) ([]string, error) {
	tree, err := b.detect()
	if err != nil {
		// Without control groups everything died with its parent, but for one that was
		// being made.
		return b.endOrphans(ctx, func(id string) bool { return !slices.Contains(keep, id) && !probing(id) })
	}
	names, err := tree.List()
	if err != nil {
		return nil, fmt.Errorf("list sandbox groups: %w", err)
	}
	var removed []string
	var errs []error
	for _, n := range names {
		if slices.Contains(keep, n) || probing(n) {
			continue
		}
		if err := sweepOne(ctx, tree.Open(n)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, n)
	}
	return removed, errors.Join(errs...)
}

// Clear kills and removes the group of one id, if there is one.
func (b *Backend) Clear(ctx context.Context, id string) error {
	tree, err := b.detect()
	if err != nil {
		_, err := b.endOrphans(ctx, func(other string) bool { return other == id })
		return err
	}
	names, err := tree.List()
	if err != nil {
		return fmt.Errorf("list sandbox groups: %w", err)
	}
	if !slices.Contains(names, id) {
		return nil
	}
	return sweepOne(ctx, tree.Open(id))
}

// Tidy removes the folder for control groups when no group is in it.
func (b *Backend) Tidy(context.Context) error {
	tree, err := b.detect()
	if err != nil {
		return nil
	}
	return tree.Retire()
}

// sweepIn bounds the wait for one group: it cannot be removed while the process
// that made it lives.
const sweepIn = 5 * time.Second

func sweepOne(ctx context.Context, g *cgroup.Group) error {
	ctx, cancel := context.WithTimeout(ctx, sweepIn)
	defer cancel()
	return errors.Join(g.Kill(ctx), g.Remove(ctx))
}

const probePrefix = "probe-"

// probing reports whether a name is that of a probe whose process lives.
func probing(name string) bool {
	rest, ok := strings.CutPrefix(name, probePrefix)
	if !ok {
		return false
	}
	text, _, _ := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(text)
	if err != nil {
		return false
	}
	_, err = os.Stat("/proc/" + strconv.Itoa(pid))
	return err == nil
}

// bwrap is the path of the program.
func (b *Backend) bwrap() (string, error) {
	if b.cfg.Path != "" {
		return b.cfg.Path, nil
	}
	p, err := exec.LookPath("bwrap")
	if err != nil {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "%s", remedyInstall)
	}
	return p, nil
}

// borrowIdentity gives the calling thread, and no other, the sandbox's uid as
// its real one while it stays root in effect: a root without CAP_SYS_RESOURCE,
// as containers have it, may limit only processes of its own real uid.
func (b *Backend) borrowIdentity() error {
	if b.keepsUID {
		return nil
	}
	const same = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(b.cfg.GID), same, same); e != 0 {
		return fmt.Errorf("borrow the sandbox's group: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(b.cfg.UID), same, same); e != 0 {
		return fmt.Errorf("borrow the sandbox's user: %w", e)
	}
	return nil
}

// rootless reports whether processes keep the edge's own uid: the edge is no root,
// or only that of a user namespace in which the dedicated uid does not exist; then
// its own is not the host's root either.
func (b *Backend) rootless() bool {
	if os.Geteuid() != 0 {
		return true
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !mapped(string(text), b.cfg.UID)
}

// mapped reads lines of "inside outside count".
func mapped(uidMap string, uid int) bool {
	for line := range strings.Lines(uidMap) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil && uid >= inside && uid-inside < count {
			return true
		}
	}
	return false
}

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Group limits and kills all processes of one attempt.
type Group struct {
	tree *Tree
	name string
	fd   int // directory in the unified hierarchy, or -1
}

// overheadPIDs are the processes and threads of our own that the group counts:
// the spawning thread, and bubblewrap's two processes a run, which the kernel
// counts a moment longer than they live.
const overheadPIDs = 16

// cpuPeriod is the accounting period in microseconds; minQuota the least that
// the kernel takes.
const (
	cpuPeriod = 100_000
	minQuota  = 1_000
)

// Create makes the group with its limits, or nothing.
func (t *Tree) Create(name string, l Limits) (*Group, error) {
	g := t.Open(name)
	if err := g.make(); err != nil {
		return nil, fmt.Errorf("make the control group %s: %w", name, err)
	}
	err := g.limit(l)
	if err == nil && t.unified != "" {
		g.fd, err = unix.Open(filepath.Join(t.unified, name), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("limit the control group %s: %w", name, err), g.remove())
	}
	return g, nil
}

// Open is the group of a name, to be killed and removed: one that an earlier
// process left.
func (t *Tree) Open(name string) *Group { return &Group{tree: t, name: name, fd: -1} }

// make makes all directories or none, and touches none that was there.
func (g *Group) make() error {
	err := g.makeOnce()
	for range 3 {
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
		// Somebody who had no group any more retired the tree.
		if err = g.tree.prepare(); err == nil {
			err = g.makeOnce()
		}
	}
	return err
}

func (g *Group) makeOnce() error {
	if g.tree.full && g.tree.mount == "" {
		if err := g.tree.prepare(); err != nil {
			return err
		}
	}
	var made []string
	for _, d := range g.tree.dirs() {
		dir := filepath.Join(d, g.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			for _, m := range made {
				err = errors.Join(err, unix.Rmdir(m))
			}
			return err
		}
		made = append(made, dir)
	}
	return nil
}

func (g *Group) limit(l Limits) error {
	quota := max(l.CPUMillis*cpuPeriod/1000, minQuota)
	pids := strconv.FormatInt(l.PIDs+overheadPIDs, 10)
	memory := strconv.FormatInt(l.MemoryBytes, 10)
	if g.tree.full {
		d := filepath.Join(g.tree.unified, g.name)
		return errors.Join(
			write(d, "memory.max", memory),
			optional(write(d, "memory.swap.max", "0")),
			write(d, "pids.max", pids),
			write(d, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)))
	}
	mem := g.v1("memory")
	return errors.Join(
		write(mem, "memory.limit_in_bytes", memory),
		optional(write(mem, "memory.memsw.limit_in_bytes", memory)),
		write(g.v1("pids"), "pids.max", pids),
		write(g.v1("cpu"), "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)),
		write(g.v1("cpu"), "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)))
}

// optional forgives a kernel without swap accounting: then there is no swap to
// account, or the file would be there.
func optional(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

func (g *Group) v1(controller string) string {
	return filepath.Join(g.tree.v1[controller], g.name)
}

func (g *Group) unified() string {
	if g.tree.unified == "" {
		return ""
	}
	return filepath.Join(g.tree.unified, g.name)
}

// FD is the directory to clone into, or -1.
func (g *Group) FD() int { return g.fd }

// Join puts the calling thread, which must be locked and not the main one, into
// the v1 hierarchies, so that what it forks is born inside. Moving a process
// later costs milliseconds each and lets it run outside first.
func (g *Group) Join() error {
	if g.tree.full {
		return nil
	}
	tid := strconv.Itoa(unix.Gettid())
	for _, c := range needed {
		if err := write(g.v1(c), "tasks", tid); err != nil {
			return fmt.Errorf("join the %s group %s: %w", c, g.name, err)
		}
	}
	return nil
}

// Counters reads what was hit.
func (g *Group) Counters() (Counters, error) {
	if g.tree.full {
		d := g.unified()
		return counters(
			filepath.Join(d, "memory.events"), filepath.Join(d, "pids.events"), filepath.Join(d, "cpu.stat"))
	}
	return counters(
		filepath.Join(g.v1("memory"), "memory.oom_control"),
		filepath.Join(g.v1("pids"), "pids.events"),
		filepath.Join(g.v1("cpu"), "cpu.stat"))
}

func counters(memory, pids, cpu string) (Counters, error) {
	var c Counters
	err := errors.Join(
		field(memory, "oom_kill", &c.OutOfMemory),
		field(pids, "max", &c.PIDsRefused),
		field(cpu, "nr_throttled", &c.Throttled))
	return c, err
}

// field reads one number of a flat keyed file.
func field(path, key string, into *int64) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			*into, err = strconv.ParseInt(v, 10, 64)
			return err
		}
	}
	return fmt.Errorf("%s has no %s", path, key)
}

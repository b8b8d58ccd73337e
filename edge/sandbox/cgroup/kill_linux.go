package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends every process of the group and returns when none is left. Threads
// of this process that joined are spared.
func (g *Group) Kill(ctx context.Context) error {
	if u := g.unified(); u != "" {
		if err := write(u, "cgroup.kill", "1"); err == nil || errors.Is(err, os.ErrNotExist) && !exists(u) {
			return g.waitEmpty(ctx)
		}
	}
	if g.tree.freezer != "" {
		if err := g.killFrozen(ctx); err != nil {
			return err
		}
	}
	return g.killEach(ctx)
}

// killEach is for machines without cgroup.kill. Nothing can be forked once the
// process limit is zero, so the list of victims only shrinks.
func (g *Group) killEach(ctx context.Context) error {
	for _, d := range g.memberships() {
		if err := write(d, "pids.max", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("stop forks in %s: %w", g.name, err)
		}
	}
	return poll(ctx, func() (bool, error) {
		pids, err := g.Processes()
		return len(pids) == 0, errors.Join(err, killAll(g.name, pids))
	})
}

func killAll(group string, pids []int) error {
	for _, p := range pids {
		if err := unix.Kill(p, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of %s: %w", p, group, err)
		}
	}
	return nil
}

func (g *Group) waitEmpty(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		pids, err := g.Processes()
		return len(pids) == 0, err
	})
}

// memberships are the directories that list the group's processes and limit
// their number.
func (g *Group) memberships() []string {
	if g.tree.full {
		return []string{g.unified()}
	}
	return []string{g.v1("pids")}
}

// Processes lists the group's processes, this one excluded: a spawning thread
// makes it appear in v1 groups.
func (g *Group) Processes() ([]int, error) {
	var pids []int
	for _, d := range g.memberships() {
		some, err := processesIn(d)
		if err != nil {
			return nil, err
		}
		pids = append(pids, some...)
	}
	return pids, nil
}

// processesIn lists a directory's living processes, this one excluded.
func processesIn(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		if pid != os.Getpid() && !dead(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// dead reports a process that runs no more but whose parent has not waited.
func dead(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	return ok && (rest[0] == 'Z' || rest[0] == 'X')
}

// Remove takes the group away; it must be empty and no thread of ours in it,
// save one that is ending.
func (g *Group) Remove(ctx context.Context) error {
	err := poll(ctx, func() (bool, error) {
		err := g.remove()
		if errors.Is(err, unix.EBUSY) {
			return false, nil // a dying task is counted a moment longer
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("remove the control group %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) remove() error {
	if g.fd >= 0 {
		unix.Close(g.fd)
		g.fd = -1
	}
	var errs []error
	for _, d := range g.tree.dirs() {
		err := unix.Rmdir(filepath.Join(d, g.name))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// poll asks until done. The kernel gives no event for most of what is asked.
func poll(ctx context.Context, done func() (bool, error)) error {
	wait := 200 * time.Microsecond
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 20*time.Millisecond)
	}
}

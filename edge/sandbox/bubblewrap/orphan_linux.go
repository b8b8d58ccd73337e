package bubblewrap

import (
	"cmp"
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

// When an edge is killed in a moment in which bwrap has made the first process of a
// namespace and that does not follow its parent, the process stays. There are two:
// before the gate, where it waits for what nobody will give, and the few instructions
// after it in which it has started the command and not yet asked for its parent's
// death. Control groups find it. Without them it is found by the name under which
// bwrap was started, which both of its processes keep.

// title is the name of a group's bwrap processes: whose they are, and which attempt's.
func (b *Backend) title(id string) string { return b.titles() + id }

func (b *Backend) titles() string { return "bwrap:" + cmp.Or(b.cfg.CgroupParent, "bivouac") + "/" }

// orphans are processes by the id in their title.
func (b *Backend) orphans() (map[string][]int, error) {
	uid := b.cfg.UID
	if b.keepsUID {
		uid = os.Geteuid()
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue // gone
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		id, ours := strings.CutPrefix(name, b.titles())
		pid, err := strconv.Atoi(filepath.Base(d))
		if !ours || err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(d, &st) == nil && (int(st.Uid) == uid || st.Uid == 0 && os.Geteuid() == 0) {
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}

// endOrphans ends those that match, and says whose they were.
func (b *Backend) endOrphans(ctx context.Context, match func(id string) bool) (ended []string, err error) {
	found, err := b.orphans()
	if err != nil {
		return nil, fmt.Errorf("look for sandboxes that were left: %w", err)
	}
	var errs []error
	for id, pids := range found {
		if !match(id) {
			continue
		}
		for _, pid := range pids {
			errs = append(errs, b.endOrphan(ctx, pid, id))
		}
		ended = append(ended, id)
	}
	return ended, errors.Join(errs...)
}

// endOrphan kills one process, held by a descriptor so that its number cannot
// become another's, and waits until it is gone.
func (b *Backend) endOrphan(ctx context.Context, pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold the sandbox process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !strings.HasPrefix(string(line), b.title(id)+"\x00") {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill the sandbox process %d: %w", pid, err)
	}
	for end := time.Now().Add(sweepIn); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for the sandbox process %d: %w", pid, err)
		case ctx.Err() != nil || time.Now().After(end):
			return fmt.Errorf("the sandbox process %d does not end", pid)
		}
	}
}

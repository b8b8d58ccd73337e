package bubblewrap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"bivouac/edge/sandbox"

	"golang.org/x/sys/unix"
)

// oomFirst makes the kernel choose code before the worker when the attempt's
// memory is spent: the attempt survives a greedy compiler.
const oomFirst = "500"

// bound sets what is limited by process: everything inside is forked from pid.
func (r *run) bound(pid int) error {
	l := r.group.limits
	set := map[int]uint64{
		unix.RLIMIT_CORE:  0,
		unix.RLIMIT_FSIZE: uint64(l.DiskBytes),
	}
	if r.group.cgroup == nil {
		// The best without control groups, and reported as such.
		set[unix.RLIMIT_DATA] = uint64(l.MemoryBytes)
		set[unix.RLIMIT_NPROC] = uint64(l.PIDs)
		set[unix.RLIMIT_CPU] = cpuSeconds(l)
	}
	for what, most := range set {
		if err := lower(pid, what, most); err != nil {
			return fmt.Errorf("limit the sandbox: %w", err)
		}
	}
	if r.role == sandbox.RoleCode && r.group.cgroup != nil {
		err := os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(oomFirst), 0)
		if err != nil && !errors.Is(err, os.ErrPermission) {
			return ignoreGone(err)
		}
	}
	return nil
}

// cpuSeconds is the CPU time that all of Timeout could use.
func cpuSeconds(l sandbox.Limits) uint64 {
	cores := (l.CPUMillis + 999) / 1000
	return uint64(cores) * uint64((l.Timeout+time.Second-1)/time.Second)
}

// lower never raises a limit that is stricter already.
func lower(pid, what int, most uint64) error {
	var old unix.Rlimit
	if err := unix.Prlimit(pid, what, nil, &old); err != nil {
		return ignoreGone(err)
	}
	most = min(most, old.Max)
	return ignoreGone(unix.Prlimit(pid, what, &unix.Rlimit{Cur: most, Max: most}, nil))
}

// ignoreGone forgives a process that died: its end is reported elsewhere.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Pace of the disk watch.
const (
	diskPace  = time.Second
	diskShare = 20 // measuring takes at most one part in so many
)

// watchDisk ends the run when the workspace is beyond its limit and has grown
// since it was last measured: one that is too large already may be tidied.
func (r *run) watchDisk(over <-chan struct{}) {
	pace := r.group.backend.diskPace
	wait := pace
	for {
		t := time.NewTimer(wait)
		select {
		case <-over:
			t.Stop()
			return
		case <-t.C:
		}
		began := time.Now()
		used, err := usage(r.tree.root)
		if err != nil {
			r.group.backend.cfg.Log.Warn("cannot measure a workspace", "group", r.group.id, "error", err)
		}
		if grown := r.group.measured(r.tree.host, used); grown && used > r.group.limits.DiskBytes {
			r.end(func(e *sandbox.Exit) { e.DiskLimit = true })
		}
		wait = max(pace, diskShare*time.Since(began))
	}
}

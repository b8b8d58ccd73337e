//go:build linux

package nomadserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// endIn bounds how long jobs may take to end before their processes are ended.
const endIn = 45 * time.Second

// close stops the jobs, then clients and server, and takes away what is left of them.
func (s *Server) close() error {
	var errs []error
	if s.management != "" {
		ctx, cancel := context.WithTimeout(context.Background(), endIn)
		_ = s.stopJobs(ctx) // a test may have ended the server: what runs is ended below
		cancel()
	}
	for _, c := range s.clients {
		errs = append(errs, c.process.End())
	}
	if s.process != nil {
		errs = append(errs, s.process.End())
	}
	errs = append(errs, endBelow(s.dir), unmountBelow(s.dir))
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// stopJobs ends all jobs and waits until no task runs on a node that answers.
func (s *Server) stopJobs(ctx context.Context) error {
	root := s.Root()
	all, _, err := root.Jobs().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return err
	}
	for _, j := range all {
		if _, _, err := root.Jobs().Deregister(j.ID, false, (&api.WriteOptions{Namespace: j.Namespace}).WithContext(ctx)); err != nil {
			return err
		}
	}
	return await(ctx, s.process, "end of all tasks", func(ctx context.Context) error {
		allocs, _, err := root.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
		if err != nil {
			return err
		}
		for _, a := range allocs {
			if a.ClientStatus == api.AllocClientStatusRunning {
				return fmt.Errorf("%s runs", a.Name)
			}
		}
		return nil
	})
}

// endBelow ends every process that was started for something below a folder, by its
// number: executors and tasks outlive the agent that started them.
func endBelow(dir string) error {
	for range 100 {
		left, err := below(dir)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("processes below %s do not end", dir)
}

// below are the processes that name a folder in their command line or their
// environment, which Nomad gives to every task.
func below(dir string) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, f := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(filepath.Join("/proc", e.Name(), f))
			if err == nil && bytes.Contains(b, []byte(dir)) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, nil
}

// unmountBelow takes away the mounts of secrets that Nomad made in allocations.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	slices.Sort(points)
	slices.Reverse(points) // the deepest first
	var errs []error
	for _, p := range points {
		errs = append(errs, unix.Unmount(p, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}

//go:build linux

package cgroup

import (
	"os"
	"strings"
	"testing"
)

// What is mounted is what the kernel has: hierarchies of version 1 by the controllers
// that they hold together, the unified one where those are not taken.
func TestMountAll(t *testing.T) {
	const head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	for name, c := range map[string]struct {
		kernel string
		fresh  bool
		want   []string
		never  string
	}{
		"version 2":         {head + "cpu\t0\t1\t1\nmemory\t0\t1\t1\npids\t0\t1\t1\n", true, []string{"mount -t cgroup2 cgroup2 /sys/fs/cgroup"}, "tmpfs"},
		"version 1":         {head + "cpu\t1\t1\t1\ncpuacct\t1\t1\t1\nmemory\t2\t1\t1\npids\t3\t1\t1\n", true, []string{"mount -t tmpfs cgroup /sys/fs/cgroup", "-o memory cgroup /sys/fs/cgroup/memory", "-o cpu,cpuacct cgroup /sys/fs/cgroup/cpu,cpuacct"}, "cgroup2"},
		"one of them":       {head + "cpu\t1\t1\t1\nmemory\t2\t1\t1\n", false, []string{"-o memory cgroup"}, "tmpfs"},
		"one that is off":   {head + "cpu\t0\t1\t1\nmemory\t2\t1\t0\n", true, []string{"cgroup2"}, "-o memory"},
		"an unknown kernel": {"", true, []string{"cgroup2"}, "tmpfs"},
	} {
		got := mountAll(readHierarchies(c.kernel), needed, c.fresh)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in %q", name, want, got)
			}
		}
		if strings.Contains(got, c.never) || strings.Contains(got, "sudo ") != (os.Geteuid() != 0) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Root is never told to become root, and others are.
func TestRemedyV2(t *testing.T) {
	v1 := map[string][]string{"2": {"memory"}}
	for _, c := range []struct {
		v1          map[string][]string
		uid         int
		want, never string
	}{
		{nil, 1000, "run the edge as root", "mount"},
		{v1, 1000, "run the edge as root", "mount"},
		{nil, 0, "outside of this container", "as root"},
		{v1, 0, "-o memory cgroup", "as root"},
	} {
		if got := remedyV2(c.v1, c.uid); !strings.Contains(got, c.want) || strings.Contains(got, c.never) {
			t.Errorf("uid %d, %v: %q", c.uid, c.v1, got)
		}
	}
}

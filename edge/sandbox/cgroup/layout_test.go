//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

const hybridMounts = `25 1 0:23 / / rw - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:4 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 30 0:28 /docker/x /var/elsewhere rw - cgroup cgroup rw,memory
`

const hybridOwn = "4:memory:/jobs/one\n3:cpu,cpuacct:/\n2:pids:/\n0::/user.slice\n"

func TestReadLayout(t *testing.T) {
	dir := t.TempDir()
	mounts, own := filepath.Join(dir, "mountinfo"), filepath.Join(dir, "cgroup")
	write(dir, "mountinfo", hybridMounts)
	write(dir, "cgroup", hybridOwn)
	os.Chmod(mounts, 0o600)
	os.Chmod(own, 0o600)
	l, err := readLayout(mounts, own)
	if err != nil {
		t.Fatal(err)
	}
	if l.unified != "/sys/fs/cgroup/unified" {
		t.Errorf("unified is %q", l.unified)
	}
	for c, want := range map[string]string{
		"memory": "/sys/fs/cgroup/memory", "cpu": "/sys/fs/cgroup/cpu,cpuacct", "pids": "/sys/fs/cgroup/pids", "freezer": "",
	} {
		if l.v1[c] != want {
			t.Errorf("%s is at %q, want %q", c, l.v1[c], want)
		}
	}
	want := map[string]string{"memory": "/jobs/one", "cpu": "/", "cpuacct": "/", "pids": "/", "": "/user.slice"}
	if !reflect.DeepEqual(l.own, want) {
		t.Errorf("own is %v, want %v", l.own, want)
	}
}

// fakeV2 is a folder that looks like a unified hierarchy: it shows which files
// are written, not what the kernel makes of them.
func fakeV2(t *testing.T, controllers string) layout {
	dir := t.TempDir()
	for _, d := range []string{"", "unit", "bivouac"} {
		os.MkdirAll(filepath.Join(dir, d), 0o755)
		if err := os.WriteFile(filepath.Join(dir, d, "cgroup.controllers"), []byte(controllers), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return layout{unified: dir, own: map[string]string{"": "/unit"}}
}

func TestDetectV2(t *testing.T) {
	l := fakeV2(t, "cpuset cpu io memory pids\n")
	tree, err := detectV2(l, "bivouac")
	if err != nil {
		t.Fatal(err)
	}
	if !tree.full || tree.unified != filepath.Join(l.unified, "unit") {
		t.Errorf("a delegated unit gives %+v", tree)
	}
	moved, err := os.Stat(filepath.Join(tree.unified, ownLeaf, "cgroup.procs"))
	if err != nil || moved.Size() == 0 {
		t.Errorf("the daemon did not leave the unit's group: %v", err)
	}
	l.own[""] = "/unit/" + ownLeaf // as a supervisor started by that daemon finds itself
	if again, err := detectV2(l, "bivouac"); err != nil || again.unified != tree.unified {
		t.Errorf("a child of the daemon finds %+v, %v", again, err)
	}
	l.own[""] = "/"
	if tree, err = detectV2(l, "bivouac"); err != nil || tree.unified != filepath.Join(l.unified, "bivouac") {
		t.Errorf("without a unit: %+v, %v", tree, err)
	}
	_, err = detectV2(fakeV2(t, "cpu memory\n"), "bivouac")
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "lacks the pids controller") {
		t.Errorf("without the pids controller: %v", err)
	}
}

func TestLimitFilesV2(t *testing.T) {
	tree := &Tree{unified: t.TempDir(), full: true, mount: "/"}
	g, err := tree.Create("one", Limits{MemoryBytes: 1 << 20, CPUMillis: 1500, PIDs: 10})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "26", "cpu.max": "150000 100000",
	} {
		path := filepath.Join(g.unified(), file)
		os.Chmod(path, 0o600)
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s has %q, want %q: %v", file, text, want, err)
		}
	}
	if g.FD() < 0 {
		t.Error("a process is cloned into a v2 group")
	}
	for file, text := range map[string]string{
		"memory.events": "low 0\noom 3\noom_kill 2\n", "pids.events": "max 5\n", "cpu.stat": "usage_usec 1\nnr_throttled 7\n",
	} {
		os.WriteFile(filepath.Join(g.unified(), file), []byte(text), 0o600)
	}
	if c, err := g.Counters(); err != nil || c != (Counters{OutOfMemory: 2, PIDsRefused: 5, Throttled: 7}) {
		t.Errorf("counters are %+v, %v", c, err)
	}
	os.WriteFile(filepath.Join(g.unified(), "pids.events"), []byte("other 1\n"), 0o600)
	if _, err := g.Counters(); err == nil {
		t.Error("a missing counter reads as none")
	}
}

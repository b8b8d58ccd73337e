//go:build linux

package vmtest

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// needs are what the suite runs beside the code under test.
var needs = []string{"bwrap", "sh", "sleep", "setsid", "nohup", "tail", "grep", "cat", "date", "rm", "mkdir", "true"}

const missing = "%s is missing, so control groups that this machine does not have are NOT tested: make vm"

// kernel finds what `make vm` brought, or what the machine boots itself.
func kernel(t *testing.T) string {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil || runtime.GOARCH != "amd64" {
		t.Skipf(missing, "qemu-system-x86_64")
	}
	_, self, _, _ := runtime.Caller(0)
	for _, pattern := range []string{os.Getenv("BIVOUAC_VM_KERNEL"), filepath.Join(filepath.Dir(self), "../../../bin/vm/vmlinuz"), "/boot/vmlinuz-*-cloud-amd64"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Skipf(missing, "a kernel")
	return ""
}

// plan is what the machine's first process reads.
type plan struct {
	Layout string
	UID    int
	Run    [][]string
	Env    []string
}

// build compiles a package of this module, statically.
func build(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out := filepath.Join(dir, "built")
	cmd := exec.Command("go", append(args[:len(args)-1:len(args)-1], "-trimpath", "-ldflags=-s -w", "-o", out, args[len(args)-1])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %v: %v\n%s", args, err, said)
	}
	return out
}

// base is the image without a plan.
func base(t *testing.T) *image {
	t.Helper()
	dir, i := t.TempDir(), newImage(t)
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		i.folder("usr/" + l)
		i.link(l, "usr/"+l)
	}
	for _, p := range needs {
		i.program(p)
	}
	i.file("init", build(t, dir, "build", "bivouac/edge/sandbox/vmtest/init"))
	i.file("suite/attacker", build(t, dir, "build", "bivouac/edge/sandbox/sandboxtest/attacker"))
	i.file("suite/bubblewrap.test", build(t, dir, "test", "-c", "bivouac/edge/sandbox/bubblewrap"))
	i.file("suite/cgroup.test", build(t, dir, "test", "-c", "bivouac/edge/sandbox/cgroup"))
	return i
}

// runsIn bounds one machine: it emulates every instruction.
const runsIn = 5 * time.Minute

// accel is software emulation, which every machine can, unless a person says else.
func accel() string {
	if a := os.Getenv("BIVOUAC_VM_ACCEL"); a != "" {
		return a
	}
	return "tcg,thread=multi"
}

// boot runs a machine to its end and returns what it said.
func boot(t *testing.T, kernel string, image []byte, p plan) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	extra := newImage(t)
	extra.entry("plan.json", kindFile|0o644, text)
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, append(image, extra.bytes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runsIn)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", accel(), "-cpu", "qemu64", "-smp", "2", "-m", "1536",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init")
	out, err := cmd.CombinedOutput()
	said := strings.ReplaceAll(string(out), "\r\n", "\n")
	if err != nil {
		t.Fatalf("the machine: %v\n%s", err, said)
	}
	return said
}

// grouped is the part of the suites that depends on control groups.
const grouped = "^(TestSuite|TestSweepAfterCrash|TestFrozenAfterCrash|TestNothingStartsBehindADeadEdge|TestSeenAs|TestFoldersGoAtTheEnd)$/^(Lifecycle|Kill|Freeze|Limits|Tidy)$"

// TestOtherMachines proves freezing, killing and limits where control groups are
// not as they are here. INV-18, INV-20.
func TestOtherMachines(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes of emulation")
	}
	boots := kernel(t)
	image := base(t).bytes()
	const user = 12345
	for name, p := range map[string]plan{
		"v2":        {Layout: "v2", Env: []string{"BIVOUAC_SUITE_SEEN=cgroup by cgroup.freeze, rootless=false"}},
		"delegated": {Layout: "delegated", UID: user, Env: []string{"BIVOUAC_SUITE_SEEN=cgroup by cgroup.freeze, rootless=true"}},
		"v1":        {Layout: "v1", Env: []string{"BIVOUAC_SUITE_SEEN=cgroup by freezer controller, rootless=false"}},
	} {
		t.Run(name, func(t *testing.T) {
			p.Env = append(p.Env, "PATH=/usr/bin", "TMPDIR=/tmp", "HOME=/tmp", "BIVOUAC_SUITE_ATTACKER=/suite/attacker")
			p.Run = [][]string{{"/suite/bubblewrap.test", "-test.v", "-test.run", grouped}, {"/suite/cgroup.test", "-test.v", "-test.run", "^(TestKill|TestCreateIsWhole)$"}}
			said := boot(t, boots, image, p)
			passed := strings.Count(said, "--- PASS")
			if !strings.Contains(said, "vmtest: exit 0 <nil>") || !strings.Contains(said, "--- PASS: TestSeenAs") || passed < 25 {
				t.Fatalf("the suites failed there:\n%s", said)
			}
			t.Logf("%d tests passed there, %d were skipped", passed, strings.Count(said, "--- SKIP"))
		})
	}
}

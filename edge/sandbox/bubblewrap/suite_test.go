//go:build linux

package bubblewrap

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/cgroup"
	"bivouac/edge/sandbox/sandboxtest"
)

// testParent keeps the groups of this test process apart from everybody's, unless
// a test that made folders for another user says where.
var testParent = cmp.Or(os.Getenv(parentVariable), fmt.Sprintf("bivouac-test-%d", os.Getpid()))

const parentVariable = "BIVOUAC_SUITE_PARENT"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(gateVariable) != "":
		dieAtTheGate(os.Getenv(gateVariable))
	case os.Getenv(dieVariable) != "":
		die()
	case os.Getenv(reportVariable) != "":
		fmt.Printf("%+v\n", testBackend().Probe(context.Background()))
		os.Exit(tidied(0))
	}
	os.Exit(tidied(m.Run()))
}

// tidied removes the folder for groups, which has to be empty by now.
func tidied(code int) int {
	if err := testBackend().Tidy(context.Background()); err != nil && code == 0 {
		fmt.Println("control groups are left:", err)
		code = 1
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + testParent)
	for _, d := range append(dirs, "/sys/fs/cgroup/"+testParent) {
		if _, err := os.Stat(d); err != nil {
			continue
		}
		if err := syscall.Rmdir(d); err != nil && code == 0 {
			fmt.Println("control groups are left:", d, err)
			code = 1
		}
	}
	return code
}

func testBackend() *Backend {
	b := New(Config{CgroupParent: testParent})
	b.diskPace = 20 * time.Millisecond
	return b
}

// broken opens holes.
func broken(t *testing.T, holes ...sandboxtest.Hole) sandbox.Backend {
	b := testBackend()
	for _, h := range holes {
		switch h {
		case sandboxtest.HoleNetwork:
			b.breach.shareNet = true
		case sandboxtest.HoleProcesses:
			b.breach.sharePID = true
		case sandboxtest.HoleSystemCalls:
			b.breach.noSeccomp = true
		case sandboxtest.HoleUserNamespace:
			b.breach.userns = true
		case sandboxtest.HoleCapabilities:
			b.breach.capabilities = true
		case sandboxtest.HoleDevices:
			b.breach.hostDevices = true
		case sandboxtest.HoleProtected:
			b.breach.writableProtected = true
		case sandboxtest.HoleParents:
			b.breach.shallowProtected = true
		case sandboxtest.HoleDescriptor:
			b.breach.leakDescriptor = true
		case sandboxtest.HoleEnvironment:
			b.breach.inheritEnv = true
		case sandboxtest.HoleRoot:
			b.keepsUID = true
		default:
			t.Fatalf("no hole %q", h)
		}
	}
	return b
}

// Variables by which the suite passes to a run as another user what only this
// one can make.
const (
	attackerVariable = "BIVOUAC_SUITE_ATTACKER"
	setuidVariable   = "BIVOUAC_SUITE_SETUID"
	plainUID         = 12345
)

// TestSuite runs as whoever runs the tests. INV-12.
func TestSuite(t *testing.T) {
	attacker, setuid := programs(t)
	uid := os.Geteuid()
	if uid == 0 {
		uid = DefaultUID
	}
	sandboxtest.Run(t, sandboxtest.Config{
		New:      func(*testing.T) sandbox.Backend { return shared() },
		Broken:   broken,
		Program:  "/attacker",
		Attacker: attacker,
		UID:      uid,
		Setuid:   setuid,
	})
}

// TestSuiteOfMechanisms runs what depends on control groups with those that the
// suite above does not use on this machine: v1 alone, and none at all.
func TestSuiteOfMechanisms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root alone may choose among hierarchies")
	}
	attacker, _ := programs(t)
	for name, detect := range map[string]func() (*cgroup.Tree, error){
		"v1":   func() (*cgroup.Tree, error) { return cgroup.DetectV1(testParent) },
		"none": lookAway,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := detect(); err != nil && name != "none" {
				t.Skip("this machine has no such control groups; the machine of vmtest has: ", err)
			}
			b := testBackend()
			b.detect = detect
			r := b.Probe(t.Context())
			t.Logf("it is seen as %+v", r)
			if want := map[string]string{"v1": cgroup.FreezeV1, "none": ""}[name]; r.Freezer != want {
				t.Errorf("it freezes by %q, want %q", r.Freezer, want)
			}
			sandboxtest.RunGroups(t, sandboxtest.Config{
				New: func(*testing.T) sandbox.Backend { return b }, Broken: broken,
				Program: "/attacker", Attacker: attacker, UID: DefaultUID,
			})
		})
	}
}

// seenVariable says how a machine that was made for this test is to be seen.
const seenVariable = "BIVOUAC_SUITE_SEEN"

// TestSeenAs compares what the probe saw with what the machine was made for.
func TestSeenAs(t *testing.T) {
	want := os.Getenv(seenVariable)
	if want == "" {
		t.Skip("this machine was not made for the test")
	}
	r := shared().Probe(t.Context())
	if got := fmt.Sprintf("%s by %s, rootless=%t", r.Limits, r.Freezer, r.Rootless); got != want || r.Problem != "" {
		t.Errorf("it is seen as %q (%+v), want %q", got, r, want)
	}
}

// shared is one backend, so that the suite probes once.
var shared = sync.OnceValue(testBackend)

// programs are the attacker and, where root can make one, its privileged copy.
func programs(t *testing.T) (attacker, setuid string) {
	if given := os.Getenv(attackerVariable); given != "" {
		return given, os.Getenv(setuidVariable)
	}
	dir := publicDir(t)
	attacker = sandboxtest.Build(t, dir)
	if os.Geteuid() == 0 {
		setuid = filepath.Join(dir, "setuid")
		copyFile(t, attacker, setuid)
		if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
	}
	return attacker, setuid
}

// publicDir can be entered by any user; t.TempDir cannot.
func publicDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "bivouac-bubblewrap-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSuiteAsUser runs TestSuite as a user without subordinate ids or groups.
func TestSuiteAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TestSuite runs as a user already")
	}
	attacker, setuid := programs(t)
	dir := publicDir(t)
	binary, scratch := filepath.Join(dir, "suite.test"), filepath.Join(dir, "tmp")
	copyFile(t, os.Args[0], binary)
	if err := os.Mkdir(scratch, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(scratch, 0o777); err != nil {
		t.Fatal(err)
	}
	asUser := func(t *testing.T, tests string, env ...string) {
		cmd := exec.CommandContext(t.Context(), binary, "-test.run="+tests, "-test.v="+fmt.Sprint(testing.Verbose()))
		cmd.Dir = dir
		cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+scratch, "TMPDIR="+scratch,
			attackerVariable+"="+attacker, setuidVariable+"="+setuid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainUID, Gid: plainUID}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("the suite as uid %d: %v", plainUID, err)
		}
		t.Logf("as uid %d:\n%s", plainUID, out)
	}
	t.Run("alone", func(t *testing.T) { asUser(t, "^TestSuite$") })
	t.Run("with folders given by root", func(t *testing.T) {
		parent := testParent + "-given"
		givenFolders(t, parent)
		asUser(t, "^(TestSuite|TestSeenAs|TestFrozenAfterCrash)$/^(Lifecycle|Kill|Freeze|Limits|Tidy)$", parentVariable+"="+parent+"/scope",
			seenVariable+"=cgroup by "+cgroup.FreezeV1+", rootless=true")
	})
}

// givenFolders are what root makes for a user in each v1 hierarchy.
func givenFolders(t *testing.T, parent string) {
	for _, c := range []string{"memory", "pids", "cpu", "freezer"} {
		dir := filepath.Join("/sys/fs/cgroup", c, parent)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("this machine has no hierarchy %s of its own: %v; the machine of vmtest has a delegated group", c, err)
		}
		t.Cleanup(func() {
			os.Remove(filepath.Join(dir, "scope"))
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		files, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(files, dir) {
			if err := os.Chown(f, plainUID, plainUID); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func gettid() int { return syscall.Gettid() }

const dieVariable = "BIVOUAC_SUITE_DIE"

// die makes a group with a running process, says so, and waits to be killed.
func die() {
	b := New(Config{CgroupParent: os.Getenv(dieVariable)})
	g, err := b.Group(context.Background(), "left", probeLimits)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	said := io.Writer(os.Stdout)
	if os.Getenv(freezeVariable) != "" {
		said = &freezes{group: g}
	}
	_, err = g.Run(context.Background(), sandbox.Process{
		Role: sandbox.RoleCode, Stdout: said, Env: []string{"PATH=/usr/bin:/bin"},
		Argv: []string{"/bin/sh", "-c", "setsid sleep 5151 & echo up; sleep 5151"},
	})
	fmt.Println(err)
	os.Exit(1)
}

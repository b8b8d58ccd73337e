//go:build linux

package bubblewrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/cgroup"
)

// TestSweepAfterCrash kills an edge with a living sandbox: its processes die
// with it, and the next start removes its group. INV-18.
func TestSweepAfterCrash(t *testing.T) {
	b := testBackend()
	tree, err := b.detect()
	if err != nil {
		t.Skip("without control groups there is nothing to sweep: ", err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{dieVariable + "=" + testParent, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatalf("the edge to be killed did not start: %v", err)
	}
	left := tree.Open("left")
	if pids, err := left.Processes(); err != nil || len(pids) < 4 {
		t.Fatalf("its group has the processes %v, %v", pids, err)
	}
	awaitFollower(t, left)
	if removed, err := b.Sweep(t.Context(), []string{"left"}); err != nil || len(removed) > 0 {
		t.Errorf("a sweep that keeps it removed %v, %v", removed, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		pids, err := left.Processes()
		if err == nil && len(pids) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("processes %v outlived their edge: %v", pids, err)
		}
	}
	if removed, err := b.Sweep(t.Context(), nil); err != nil || !slices.Contains(removed, "left") {
		t.Errorf("the sweep removed %v, %v", removed, err)
	}
	if names, err := tree.List(); err != nil || slices.Contains(names, "left") {
		t.Errorf("groups after the sweep: %v, %v", names, err)
	}
}

// awaitFollower waits until the first process of the namespace follows its parent:
// bwrap applies the filter right after it has asked for that. The command starts
// before, and a process that an edge leaves in between is what Sweep is for.
func awaitFollower(t *testing.T, g *cgroup.Group) {
	t.Helper()
	first := regexp.MustCompile(`(?s)\nNSpid:\t\d+\t1\n.*\nSeccomp:\t2\n`)
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		pids, err := g.Processes()
		for _, pid := range pids {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil && first.Match(text) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("none of the processes %v is a first one with its filter: %v", pids, err)
		}
	}
}

// freezeVariable makes the process that dies freeze its group before it says so.
const freezeVariable = "BIVOUAC_SUITE_FREEZE"

// freezes freezes a group at the first output of it.
type freezes struct {
	group sandbox.Group
	once  sync.Once
}

func (f *freezes) Write(p []byte) (int, error) {
	f.once.Do(func() {
		if err := f.group.Freeze(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("up")
	})
	return len(p), nil
}

// TestFrozenAfterCrash kills an edge whose sandbox is frozen: whatever the kernel
// made of the death signal meanwhile, the next start leaves no process. INV-18.
func TestFrozenAfterCrash(t *testing.T) {
	b := testBackend()
	tree, err := b.detect()
	if err != nil || tree.Freezer() == "" {
		t.Skip("nothing can be frozen here: ", err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{dieVariable + "=" + testParent, freezeVariable + "=yes", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(io.LimitReader(out, 3)); err != nil || string(said) != "up\n" {
		t.Fatalf("the edge to be killed did not start: %q, %v", said, err)
	}
	left := tree.Open("left")
	pids, err := left.Processes()
	if err != nil || len(pids) < 3 {
		t.Fatalf("its group has the processes %v, %v", pids, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := b.Clear(t.Context(), "left"); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(line), "5151") {
			t.Errorf("process %d outlived its edge: %q", pid, line)
		}
	}
	if names, err := tree.List(); err != nil || slices.Contains(names, "left") {
		t.Errorf("groups after the clearing: %v, %v", names, err)
	}
}

// TestFoldersGoAtTheEnd: the folder for groups goes with the last of them, and
// comes again with the next. INV-18.
func TestFoldersGoAtTheEnd(t *testing.T) {
	b := New(Config{CgroupParent: testParent + "/deep"})
	tree, err := b.detect()
	if err != nil {
		t.Skip("without control groups nothing is made: ", err)
	}
	here := func() bool {
		found, _ := filepath.Glob("/sys/fs/cgroup/*/" + testParent + "/deep")
		one, _ := filepath.Glob("/sys/fs/cgroup/" + testParent + "/deep")
		return len(found)+len(one) > 0
	}
	if !here() {
		t.Skip("this machine gives a group of its own, which stays: ", tree.Kind())
	}
	for range 2 {
		g, err := b.Group(t.Context(), "last", probeLimits)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Tidy(t.Context()); err != nil || !here() {
			t.Errorf("with a group in it: %v, still there %t", err, here())
		}
		if err := errors.Join(g.Close(t.Context()), b.Tidy(t.Context())); err != nil || here() {
			t.Errorf("without: %v, still there %t", err, here())
		}
	}
}

// gateVariable makes a process of this test die while bwrap waits for it.
const gateVariable = "BIVOUAC_SUITE_GATE"

// dieAtTheGate makes a sandbox that would leave a mark in dir, and opens no gate.
func dieAtTheGate(dir string) {
	b := New(Config{CgroupParent: os.Getenv(dieVariable)})
	if os.Getenv(bareVariable) != "" {
		b.detect = lookAway
	}
	g, err := b.group(context.Background(), "gate", probeLimits)
	var r *run
	if err == nil {
		r, err = g.start(sandbox.Process{Role: sandbox.RoleCode, Workspace: dir, Env: []string{"PATH=/usr/bin:/bin"},
			Argv: []string{"/bin/sh", "-c", "echo ran > mark; sleep 600"}})
	}
	var doc report
	if err == nil {
		err = json.NewDecoder(r.status).Decode(&doc)
	}
	fmt.Println(doc.ChildPID, err)
	select {}
}

// bareVariable lets that process have no control groups.
const bareVariable = "BIVOUAC_SUITE_BARE"

func lookAway() (*cgroup.Tree, error) { return nil, errors.New("this test looks away") }

// atTheGate starts that process and returns the first process of its sandbox.
func atTheGate(t *testing.T, dir string, env ...string) (edge *exec.Cmd, child int) {
	t.Helper()
	edge = exec.CommandContext(t.Context(), os.Args[0])
	edge.Env = append(env, dieVariable+"="+testParent, gateVariable+"="+dir, "PATH="+os.Getenv("PATH"))
	out, err := edge.StdoutPipe()
	if err == nil {
		err = edge.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var failed string
	if _, err := fmt.Fscanln(out, &child, &failed); err != nil || child == 0 {
		t.Fatalf("the edge to be killed did not start: %v, %s", err, failed)
	}
	return edge, child
}

// TestOrphanWithoutGroups: the same without control groups. What is left in the few
// milliseconds in which a process does not follow its parent yet is found by its
// name, by the next start; what lives is spared. INV-18.
func TestOrphanWithoutGroups(t *testing.T) {
	b := testBackend()
	b.detect = lookAway
	living, err := b.group(t.Context(), "living", probeLimits)
	if err != nil {
		t.Fatal(err)
	}
	beats, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = living.Run(t.Context(), sandbox.Process{Role: sandbox.RoleCode, Stdout: &firstWrite{seen: beats},
			Argv: []string{"/bin/sh", "-c", "echo up; sleep 5152"}, Env: []string{"PATH=/usr/bin:/bin"}})
	}()
	<-beats
	edge, child := atTheGate(t, t.TempDir(), bareVariable+"=yes")
	edge.Process.Kill()
	edge.Wait()
	if found, err := b.orphans(); err != nil || !slices.Contains(found["gate"], child) {
		t.Logf("the process died by itself this time: %v, %v", found, err)
	}
	ended, err := b.Sweep(t.Context(), []string{"living"})
	if err != nil || slices.Contains(ended, "living") {
		t.Errorf("the sweep ended %v, %v", ended, err)
	}
	if err := b.Clear(t.Context(), "gate"); err != nil {
		t.Error(err)
	}
	if found, err := b.orphans(); err != nil || len(found["gate"]) > 0 || len(found["living"]) == 0 {
		t.Errorf("after it there are %v, %v", found, err)
	}
	if err := b.Clear(t.Context(), "living"); err != nil {
		t.Error(err)
	}
	<-done // who is not kept has ended, too
	if err := living.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// firstWrite closes seen at the first output.
type firstWrite struct {
	seen chan struct{}
	once sync.Once
}

func (f *firstWrite) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.seen) })
	return len(p), nil
}

// TestNothingStartsBehindADeadEdge kills an edge while bwrap waits for it with its
// first process made, which does not follow its parent yet: nothing of the command
// runs, and Clear finds what is left. INV-18.
func TestNothingStartsBehindADeadEdge(t *testing.T) {
	b := testBackend()
	tree, err := b.detect()
	if err != nil {
		t.Skip("without control groups there is nothing to clear: ", err)
	}
	dir := t.TempDir()
	cmd, child := atTheGate(t, dir)
	if pids, err := tree.Open("gate").Processes(); err != nil || !slices.Contains(pids, child) {
		t.Fatalf("its group has the processes %v, not %d: %v", pids, child, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "mark")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the command ran after its edge was dead (%v)", err)
		}
	}
	if err := b.Clear(t.Context(), "gate"); err != nil {
		t.Error(err)
	}
	// A group that is gone is one that has no process.
	if names, err := tree.List(); err != nil || slices.Contains(names, "gate") {
		t.Errorf("groups after the clearing: %v, %v", names, err)
	}
	if err := b.Clear(t.Context(), "gate"); err != nil {
		t.Errorf("nothing to clear: %v", err)
	}
}

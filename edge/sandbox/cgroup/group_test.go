//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// realTree is this machine's, apart from everybody else's.
func realTree(t *testing.T) *Tree {
	t.Helper()
	tree, err := Detect(fmt.Sprintf("bivouac-cgroup-test-%d", os.Getpid()))
	if err != nil {
		t.Skip("no control groups may be made here: ", err)
	}
	t.Cleanup(func() {
		for _, d := range tree.dirs() {
			if tree.full {
				continue // may be a unit's own
			}
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		}
	})
	return tree
}

// family starts, in g, a shell with a session leader and an orphan, and returns
// how to wait for it.
func family(t *testing.T, g *Group) func() error {
	cmd := exec.Command("sh", "-c", "setsid sleep 600 & (setsid sh -c 'sleep 600 & exit' &); echo up; sleep 600")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if g.FD() >= 0 {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, g.FD()
	}
	started := make(chan error)
	stay := make(chan struct{})
	go offMain(func() {
		err := g.Join()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		<-stay
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	return func() error {
		defer close(stay)
		return cmd.Wait()
	}
}

// offMain runs f on a thread that ends with it and so leaves its groups. The
// main thread does not end.
func offMain(f func()) {
	runtime.LockOSThread()
	if syscall.Gettid() != os.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		offMain(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// TestKill ends whole families, with and without cgroup.kill. INV-18.
func TestKill(t *testing.T) {
	tree := realTree(t)
	each := *tree
	each.unified = ""
	ways := map[string]*Tree{"by the kernel": tree}
	if !tree.full {
		ways["one by one"] = &each
	}
	for name, tr := range ways {
		t.Run(name, func(t *testing.T) {
			g, err := tr.Create("family", Limits{MemoryBytes: 64 << 20, CPUMillis: 500, PIDs: 20})
			if err != nil {
				t.Fatal(err)
			}
			wait := family(t, g)
			if pids, err := g.Processes(); err != nil || len(pids) < 3 || slices.Contains(pids, os.Getpid()) {
				t.Errorf("the family is %v, %v", pids, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := g.Kill(ctx); err != nil {
				t.Errorf("kill: %v", err)
			}
			if pids, err := g.Processes(); err != nil || len(pids) > 0 {
				t.Errorf("after the kill there are %v, %v", pids, err)
			}
			if err := wait(); err == nil {
				t.Error("the killed shell ended well")
			}
			if names, err := tr.List(); err != nil || !slices.Contains(names, "family") {
				t.Errorf("groups are %v, %v", names, err)
			}
			if err := g.Remove(ctx); err != nil {
				t.Errorf("remove: %v", err)
			}
			if names, err := tr.List(); err != nil || len(names) > 0 {
				t.Errorf("groups are %v, %v", names, err)
			}
		})
	}
}

// TestCreateIsWhole makes no group at all where a limit cannot be set.
func TestCreateIsWhole(t *testing.T) {
	tree := realTree(t)
	if _, err := tree.Create("partial", Limits{MemoryBytes: -5, CPUMillis: 500, PIDs: 20}); err == nil {
		t.Error("a group with an impossible limit was made")
	}
	if names, err := tree.List(); err != nil || len(names) > 0 {
		t.Errorf("groups are %v, %v", names, err)
	}
	g, err := tree.Create("whole", Limits{MemoryBytes: 64 << 20, CPUMillis: 500, PIDs: 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Create("whole", Limits{MemoryBytes: 64 << 20, CPUMillis: 500, PIDs: 20}); !isExist(err) {
		t.Errorf("a second group of that name: %v", err)
	}
	if names, err := tree.List(); err != nil || !slices.Contains(names, "whole") {
		t.Errorf("the first did not survive the second: %v, %v", names, err)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func isExist(err error) bool { return errors.Is(err, os.ErrExist) }

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

// Mechanisms that stop all processes of a group without ending them.
const (
	// FreezeUnified is cgroup.freeze in the unified hierarchy, with or without
	// controllers there. It needs none.
	FreezeUnified = "cgroup.freeze"
	// FreezeV1 is the freezer controller of cgroup v1. A signal to a frozen process
	// waits until it is thawed, SIGKILL too.
	FreezeV1 = "freezer controller"
)

// Freezer names the mechanism of a tree; empty where there is none.
func (t *Tree) Freezer() string {
	switch {
	case t.unified != "" && exists(filepath.Join(t.unified, "cgroup.freeze")):
		return FreezeUnified
	case t.freezer != "":
		return FreezeV1
	}
	return ""
}

// useFreezer makes a folder in the v1 freezer hierarchy, where the unified one
// cannot freeze. A tree without is still of use.
func (t *Tree) useFreezer(l layout, parent string) {
	mount, ok := l.v1["freezer"]
	if !ok || t.Freezer() != "" {
		return
	}
	dir := filepath.Join(mount, parent)
	if ensure(dir) != nil || !exists(filepath.Join(dir, "freezer.state")) {
		return
	}
	t.freezer = dir
}

// Enter puts the calling thread, which must be locked, into the v1 freezer for as
// long as it forks: what is forked is a member from birth. It must leave again,
// or freezing the group would stop a thread of ours.
func (g *Group) Enter() error { return g.moveThread(g.name) }

// Leave takes the calling thread out of the group, to the folder above: that is
// never frozen, and a user may write there.
func (g *Group) Leave() error { return g.moveThread("") }

func (g *Group) moveThread(name string) error {
	if g.tree.freezer == "" {
		return nil
	}
	if err := write(filepath.Join(g.tree.freezer, name), "tasks", strconv.Itoa(unix.Gettid())); err != nil {
		return fmt.Errorf("move a thread to the freezer group %q: %w", name, err)
	}
	return nil
}

// Freeze stops every process of the group and returns when all are stopped.
func (g *Group) Freeze(ctx context.Context) error { return g.setFrozen(ctx, true) }

// Thaw lets them go on. Both may be called again.
func (g *Group) Thaw(ctx context.Context) error { return g.setFrozen(ctx, false) }

func (g *Group) setFrozen(ctx context.Context, frozen bool) error {
	var err error
	switch g.tree.Freezer() {
	case FreezeUnified:
		err = g.freezeUnified(ctx, frozen)
	case FreezeV1:
		err = g.freezeV1(ctx, frozen)
	default:
		return protocol.Errorf(protocol.CodeIncompatible, "this machine cannot freeze processes: it has neither cgroup.freeze nor the freezer controller")
	}
	if err != nil {
		return fmt.Errorf("set the control group %s to frozen=%t: %w", g.name, frozen, err)
	}
	return nil
}

func (g *Group) freezeUnified(ctx context.Context, frozen bool) error {
	d, want := g.unified(), map[bool]string{true: "1", false: "0"}[frozen]
	if err := write(d, "cgroup.freeze", want); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		var is int64
		err := field(filepath.Join(d, "cgroup.events"), "frozen", &is)
		return (is == 1) == frozen, err
	})
}

// freezeV1 asks again while it looks: a process that forks meanwhile can keep the
// kernel from coming to an end.
func (g *Group) freezeV1(ctx context.Context, frozen bool) error {
	d, want := filepath.Join(g.tree.freezer, g.name), map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
	return poll(ctx, func() (bool, error) {
		if err := write(d, "freezer.state", want); err != nil {
			return false, err
		}
		is, err := os.ReadFile(filepath.Join(d, "freezer.state"))
		return strings.TrimSpace(string(is)) == want, err
	})
}

// killFrozen freezes, kills all and thaws: nothing can fork away from the list,
// and what an earlier process left frozen can die.
func (g *Group) killFrozen(ctx context.Context) error {
	d := filepath.Join(g.tree.freezer, g.name)
	if !exists(d) {
		return nil
	}
	err := g.freezeV1(ctx, true)
	if err == nil {
		var pids []int
		if pids, err = processesIn(d); err == nil {
			err = killAll(g.name, pids)
		}
	}
	return errors.Join(err, g.freezeV1(context.WithoutCancel(ctx), false))
}

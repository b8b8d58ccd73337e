package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// daemons starts a session leader, a double fork and an orphan, then says so.
const daemons = `setsid sleep %[1]s & (setsid sh -c 'sleep %[1]s & exit' &); nohup sleep %[1]s >/dev/null 2>&1 & echo up; %[2]s`

var tokens = 7000

// token is a number of seconds that no other sleep on the host has.
func token() string {
	tokens++
	return fmt.Sprintf("86%d.%d", os.Getpid(), tokens)
}

// tidy is what must be gone afterwards.
func (c Config) tidy(t *testing.T) {
	b := c.New(t)
	t.Run("daemons die with a kill", func(t *testing.T) {
		g, tok := group(t, b, roomy), token()
		s := start(t, t.Context(), g, c.shell(fmt.Sprintf(daemons, tok, "sleep "+tok)))
		eventually(t, "the daemons to start", func() bool { return len(withToken(t, "sleep\x00"+tok)) >= 4 })
		check(t, g.Kill(t.Context()))
		if left := withToken(t, tok); len(left) > 0 {
			t.Errorf("processes %v outlived the kill", left)
		}
		if r := s.wait(t); !r.exit.Killed {
			t.Errorf("the command: %+v", r)
		}
	})
	t.Run("daemons die with the command", func(t *testing.T) {
		tok := token()
		r := run(t.Context(), group(t, b, roomy), c.shell(fmt.Sprintf(daemons, tok, "exit 0")))
		if r.err != nil || r.exit.Code != 0 {
			t.Errorf("the command: %+v", r)
		}
		if left := withToken(t, tok); len(left) > 0 {
			t.Errorf("processes %v outlived the run", left)
		}
	})
	t.Run("nothing of ours is left", func(t *testing.T) { c.nothingLeft(t, b) })
	t.Run("sweep", func(t *testing.T) { c.sweep(t, b) })
}

// nothingLeft compares descriptors and children before and after every end that
// a run can have.
func (c Config) nothingLeft(t *testing.T, b sandbox.Backend) {
	use := func() {
		l := roomy
		l.OutputBytes = 1000
		g, err := b.Group(t.Context(), groupID(), l)
		check(t, err)
		for _, p := range []sandbox.Process{
			c.code("exit", "1"), c.code("spew"), c.shell("kill -9 $$"), c.inWorkspace(t, "exit", "0"),
		} {
			run(t.Context(), g, p)
		}
		brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		run(brief, g, c.code("sleep"))
		cancel()
		absent := c.code()
		absent.Argv = []string{"/absent"}
		if r := run(t.Context(), g, absent); protocol.CodeOf(r.err) != protocol.CodeInvalidArgument {
			t.Errorf("a command that is absent: %+v", r)
		}
		check(t, g.Close(t.Context()))
	}
	use() // what is opened once for the life of the process
	files, before := openDescriptors(t), children(t)
	use()
	if now := openDescriptors(t); now != files {
		t.Errorf("%d descriptors were open before and %d are now", files, now)
	}
	for pid := range children(t) {
		if !before[pid] {
			t.Errorf("child %d is left", pid)
		}
	}
}

// sweep spares what is kept. That it removes what a dead process left is proven
// by a backend's own tests, which can die.
func (c Config) sweep(t *testing.T, b sandbox.Backend) {
	id := groupID()
	g, err := b.Group(t.Context(), id, roomy)
	check(t, err)
	s := start(t, t.Context(), g, c.code("sleep"))
	if removed, err := b.Sweep(t.Context(), []string{id}); err != nil || slices.Contains(removed, id) {
		t.Errorf("a sweep that keeps %s removed %v: %v", id, removed, err)
	}
	select {
	case r := <-s.done:
		t.Errorf("a kept group's process ended: %+v", r)
	default:
	}
	check(t, g.Close(t.Context()))
	s.wait(t)
	if removed, err := b.Sweep(t.Context(), nil); err != nil || slices.Contains(removed, id) {
		t.Errorf("a closed group was still there: %v, %v", removed, err)
	}
}

// workspace is what code may do in the folder it is given.
func (c Config) workspace(t *testing.T) {
	b := c.New(t)
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "kept"), 0o755))
	check(t, os.WriteFile(filepath.Join(dir, "kept", "file"), []byte("x"), 0o644))
	g := group(t, b, roomy)
	p := c.shell("pwd; cat kept/file; echo made > kept/made; rm kept/file; mkdir new; echo deep > new/deep; echo said > /dev/stderr")
	p.Workspace, p.Protected = dir, []string{"guarded/below", ".git"}
	r := run(t.Context(), g, p)
	if r.err != nil || r.exit.Code != 0 || r.out != "/workspace\nx" || r.log != "said\n" {
		t.Errorf("rightful work: %+v", r)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "new", "deep")); err != nil || string(text) != "deep\n" {
		t.Errorf("what it wrote: %q, %v", text, err)
	}
	st, err := os.Stat(filepath.Join(dir, "new"))
	check(t, err)
	if uid := owner(st); uid != c.UID || uid == 0 {
		t.Errorf("the new folder belongs to uid %d, want %d", uid, c.UID)
	}
	if r := run(t.Context(), g, c.code("loopback")); r.err != nil || r.out != "1 lo <nil>\n" {
		t.Errorf("its own loopback: %+v", r)
	}
	check(t, os.Symlink("kept", filepath.Join(dir, "alias")))
	p.Protected = []string{"alias/made"}
	if r := run(t.Context(), g, p); protocol.CodeOf(r.err) != protocol.CodeFailedPrecondition || !strings.Contains(r.err.Error(), "alias") {
		t.Errorf("a protected path through a link: %+v", r)
	}
	check(t, os.Symlink("/", filepath.Join(dir, "everything")))
	p.Protected, p.Binds = nil, []sandbox.Bind{{Host: filepath.Join(dir, "everything"), Inside: "/all"}}
	if r := run(t.Context(), g, p); protocol.CodeOf(r.err) != protocol.CodeInvalidArgument {
		t.Errorf("a bind that leads to /: %+v", r)
	}
	check(t, g.Close(t.Context()))
	for _, name := range []string{"guarded", ".git"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("the stand-in %s is left in the workspace: %v", name, err)
		}
	}
}

// eventually waits for something that gives no event.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

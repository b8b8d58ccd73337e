//go:build unix

package device_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/device"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

// Every way out of the named folders is refused, by each action, without a word
// of what lies there; the last rows are their allowed twins.
func TestWaysOut(t *testing.T) {
	m := newMachine(t)
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(m.notes, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(m.secret, "abs")
	link("../secret", "rel")
	link("sub/../../secret/key", "climb")
	link("state", "own")
	link("sub/../state/deep", "owndeep")
	link("loop", "loop")
	link("/dev/zero", "zero")
	link("sub", "inner")
	link("sub/../a.txt", "innerfile")
	if err := syscall.Mkfifo(filepath.Join(m.notes, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		ok   bool
	}{
		{"notes/../secret/key", false}, {"notes/sub/../../secret/key", false}, {"../secret/key", false},
		{"/etc/passwd", false}, {"notes//../secret/key", false}, {"notes/\x00", false}, {`notes\..\secret`, false},
		{"notes/abs/key", false}, {"notes/rel/key", false}, {"notes/climb", false},
		{"notes/state/device.key", false}, {"notes/own/device.key", false}, {"notes/owndeep/journal", false},
		{"notes/sub/../state/device.key", false}, {"notes/./state/deep/journal", false},
		{"notes/loop", false}, {"notes/zero", false}, {"notes/pipe", false},
		{"secret/key", false}, {"", false}, {"notes/a.txt/x", false},
		{"notes/a.txt", true}, {"notes/./sub/b.txt", true}, {"notes/inner/b.txt", true}, {"notes/innerfile", true},
	} {
		r := m.do(device.Read, path{"path": c.path})
		if (r.GetStatus() == device.Succeeded) != c.ok {
			t.Errorf("read %q: %v", c.path, r)
		}
		noCanary(t, c.path, r)
		if !c.ok {
			w := m.write(c.path, "hostile", "")
			if w.GetStatus() == device.Succeeded {
				t.Errorf("write %q succeeded", c.path)
			}
			noCanary(t, c.path, w)
			if c.path != "" {
				noCanary(t, c.path, m.do(device.List, path{"path": c.path}))
			}
		}
	}
	if got := read(t, filepath.Join(m.secret, "key")) + read(t, filepath.Join(m.notes, "state", "device.key")); got != "canary-outsidecanary-private" {
		t.Errorf("something outside was changed: %q", got)
	}
}

func noCanary(t *testing.T, path string, r *runnerv1.Result) {
	t.Helper()
	if text := r.GetOutput() + r.GetMessage(); strings.Contains(text, "canary") {
		t.Errorf("%q told %s", path, text)
	}
}

// New files cannot be placed through a link that leaves, nor into the private
// directory; through an inner link they can.
func TestWaysOutForNewFiles(t *testing.T) {
	m := newMachine(t)
	for target, name := range map[string]string{m.secret: "abs", "../secret/new": "dangling", "state": "own", "sub/made": "inner"} {
		if err := os.Symlink(target, filepath.Join(m.notes, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"notes/abs/new", "notes/dangling", "notes/own/new", "notes/state/new"} {
		if r := m.write(p, "x", ""); r.GetStatus() != device.Denied {
			t.Errorf("%s: %v", p, r)
		}
	}
	for _, p := range []string{filepath.Join(m.secret, "new"), filepath.Join(m.notes, "state", "new")} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s was made", p)
		}
	}
	if r := m.write("notes/inner", "made", ""); r.GetStatus() != device.Succeeded || read(t, filepath.Join(m.notes, "sub", "made")) != "made" {
		t.Errorf("through an inner link: %v", r)
	}
}

func TestDeviceNodeIsNeverOpened(t *testing.T) {
	m := newMachine(t)
	node := filepath.Join(m.notes, "null")
	if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Skipf("device nodes need more rights here: %v", err)
	}
	if r := m.do(device.Read, path{"path": "notes/null"}); r.GetStatus() != device.Denied {
		t.Errorf("read: %v", r)
	}
	if r := m.write("notes/null", "x", canonical.Digest(nil)); r.GetStatus() != device.Denied {
		t.Errorf("write: %v", r)
	}
	if got := output[listOut](t, m.do(device.List, path{"path": "notes"})).names(); !strings.Contains(got, "null:other") {
		t.Errorf("list: %s", got)
	}
}

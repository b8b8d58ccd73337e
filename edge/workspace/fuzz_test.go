package workspace

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever a tar says, nothing is written outside of the folder.
func FuzzStage(f *testing.F) {
	f.Add([]byte("not a tar"))
	f.Add(make([]byte, 1024))
	f.Fuzz(func(t *testing.T, tarball []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "ws")
		must(t, os.Mkdir(dir, 0o700))
		_, _ = StageWithin(t.Context(), bytes.NewReader(tarball), dir, Limits{MaxFiles: 100, MaxFileBytes: 1 << 20, MaxBytes: 1 << 20, MaxNameBytes: 200})
		if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
			t.Errorf("something was written outside: %v, %v", left, err)
		}
	})
}

// A link that is accepted leads nowhere outside, whatever other accepted links
// lie on its way.
func FuzzLink(f *testing.F) {
	f.Add("a/b", "../c", "a/d")
	f.Add("x", ".", "x/../y")
	f.Add("x", "d/e", "x/..")
	f.Fuzz(func(t *testing.T, name, target, through string) {
		if checkName(name) != nil || checkLink(name, target) != nil || checkLink("last", through) != nil || strings.ContainsAny(name+target+through, "\x00") {
			return
		}
		if len(name)+len(target)+len(through) > 200 || name == "last" || strings.HasPrefix(name, "last/") {
			return
		}
		parent := t.TempDir()
		root, err := os.OpenRoot(parent)
		must(t, err)
		defer root.Close()
		must(t, root.Mkdir("ws", 0o700))
		ws, err := root.OpenRoot("ws")
		must(t, err)
		defer ws.Close()
		if ws.MkdirAll(filepath.Dir(name), 0o700) != nil || ws.Symlink(target, name) != nil || ws.Symlink(through, "last") != nil {
			return
		}
		if _, err := ws.Stat("last"); err != nil && strings.Contains(err.Error(), "escapes") {
			t.Errorf("%q -> %q and last -> %q lead outside", name, target, through)
		}
	})
}

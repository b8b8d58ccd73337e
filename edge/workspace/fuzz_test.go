package workspace

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever a tar says, nothing is written outside of the folder.
func FuzzStage(f *testing.F) {
	f.Add([]byte("not a tar"))
	f.Add(make([]byte, 1024))
	f.Add(newPack(f).file("a", "x").file("d/b", "y").link("l", "a").bytes())
	f.Add(newPack(f).link("a", "b/..").link("b", "c").file("c/x", "x").bytes())
	f.Add(newPack(f).file("../x", "x").bytes())
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

// Whatever a patch says, nothing outside of the folder changes, and a patch that is
// refused changes nothing inside.
func FuzzApply(f *testing.F) {
	const head = "diff --git a/%[1]s b/%[1]s\n"
	for _, name := range []string{"a", "../outside", "d/../../outside", "/outside", "link/outside", ".git/config", "\"\\056\\056/outside\""} {
		f.Add(fmt.Appendf(nil, head+"--- a/%[1]s\n+++ b/%[1]s\n@@ -1 +1 @@\n-one\n+two\n", name))
		f.Add(fmt.Appendf(nil, head+"new file mode 120000\n--- /dev/null\n+++ b/%[1]s\n@@ -0,0 +1 @@\n+../outside\n\\ No newline at end of file\n", name))
		f.Add(fmt.Appendf(nil, head+"deleted file mode 100644\n--- a/%[1]s\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", name))
	}
	f.Add([]byte("diff --git a/a b/../outside\nsimilarity index 100%\nrename from a\nrename to ../outside\n"))
	f.Add([]byte("diff --git a/b b/b\nnew file mode 100644\nGIT binary patch\nliteral 3\nKcmZQzU|;|M00aO5\n\nliteral 0\nHcmV?d00001\n\n"))
	f.Fuzz(func(t *testing.T, patch []byte) {
		if len(patch) > 64<<10 {
			return
		}
		parent := t.TempDir()
		dir := filepath.Join(parent, "ws")
		write(t, dir, map[string]string{"a": "one\n", "d/b": "one\n", "link": "-> d"})
		write(t, parent, map[string]string{"outside": "one\n"})
		before := tree(t, dir)
		err := Apply(t.Context(), dir, patch)
		left, rerr := os.ReadDir(parent)
		if text, oerr := os.ReadFile(filepath.Join(parent, "outside")); rerr != nil || oerr != nil || string(text) != "one\n" || len(left) != 2 {
			t.Errorf("something changed outside: %q, %v, %v", text, left, oerr)
		}
		if after := tree(t, dir); err != nil && !maps.Equal(after, before) {
			t.Errorf("a refused patch (%v) made of %v %v", err, before, after)
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

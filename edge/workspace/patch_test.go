package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func mustSum(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}

// baseline stages what dir packs and records it, as a runner does.
func baseline(t *testing.T, dir string) (work string, r *Repo) {
	t.Helper()
	tarball, _ := packed(t, dir)
	work = staged(t, tarball)
	r, err := Init(filepath.Join(t.TempDir(), "git"), work)
	must(t, err)
	must(t, r.Baseline(t.Context()))
	return work, r
}

func patchOf(t *testing.T, r *Repo) []byte {
	t.Helper()
	p, empty, err := r.Patch(t.Context())
	must(t, err)
	if empty != (len(p) == 0) {
		t.Errorf("empty=%v for %d bytes", empty, len(p))
	}
	return p
}

// Everything a turn may do to files arrives at the person's folder by the patch,
// which is the same bytes each time.
func TestPatchAndApply(t *testing.T) {
	dir := repository(t, map[string]string{
		"keep": "k\n", "edit.txt": "one\ntwo\nthree\n", "gone/only": "x\n", "mode.sh": "#!/bin/sh\n",
		"bin": "\x00\x01\x02", "link": "-> keep", "crlf.txt": "a\r\nb\r\n", ".gitignore": "node_modules/\n*.o\n",
		".gitattributes": "*.txt text eol=crlf ident\n*.bin binary\n", "file-to-dir": "f\n", "dir-to-file/x": "d\n",
		"noeol": "no newline", "umlaut-ü \"q\"\n.txt": "1\n", "forced.o": "tracked\n",
	})
	plainGit(t, dir, "add", "-f", "forced.o")
	work, r := baseline(t, dir)
	if p := patchOf(t, r); p != nil {
		t.Fatalf("a patch of nothing:\n%s", p)
	}
	if changed, err := r.Changed(t.Context()); err != nil || changed {
		t.Fatalf("changed=%v, %v before any change", changed, err)
	}

	write(t, work, map[string]string{
		"edit.txt": "one\nTWO\nthree\n", "new/deep/file": "new\n", "bin": "\x00\xff\x02\x03", "crlf.txt": "a\r\nb\r\nc\r\n",
		"node_modules/m/index.js": "no", "x.o": "no", "forced.o": "changed\n", "noeol": "no newline, still", "empty": "",
		"umlaut-ü \"q\"\n.txt": "2\n", "run*": "#!/bin/sh\n", "id.txt": "$Id$\n", ":(exclude)*": "magic\n",
	})
	must(t, os.RemoveAll(filepath.Join(work, "gone")))
	must(t, os.Chmod(filepath.Join(work, "mode.sh"), 0o755))
	must(t, os.Remove(filepath.Join(work, "link")))
	must(t, os.Symlink("edit.txt", filepath.Join(work, "link")))
	must(t, os.Remove(filepath.Join(work, "file-to-dir")))
	write(t, work, map[string]string{"file-to-dir/inner": "i\n"})
	must(t, os.RemoveAll(filepath.Join(work, "dir-to-file")))
	write(t, work, map[string]string{"dir-to-file": "now a file\n"})
	must(t, syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600))

	if changed, err := r.Changed(t.Context()); err != nil || !changed {
		t.Errorf("changed=%v, %v after changes", changed, err)
	}
	p := patchOf(t, r)
	if again := patchOf(t, r); !bytes.Equal(again, p) {
		t.Error("the same change gave different patches")
	}
	must(t, os.Chmod(filepath.Join(dir, "edit.txt"), 0o640))
	must(t, Apply(t.Context(), dir, p))
	want := tree(t, work)
	delete(want, "node_modules/m/index.js")
	delete(want, "x.o")
	sameTree(t, tree(t, dir), want)
	if st, _ := os.Stat(filepath.Join(dir, "edit.txt")); st.Mode().Perm() != 0o640 {
		t.Errorf("apply changed the mode of a file to %o", st.Mode().Perm())
	}
	wantCode(t, Apply(t.Context(), dir, p), protocol.CodeAlreadyExists, "already has this change")
	must(t, Apply(t.Context(), dir, nil))
}

// A patch computed by a runner whose base has an earlier patch holds the later
// change alone, and both apply one after the other.
func TestPatchesInOrder(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n"})
	work, r := baseline(t, dir)
	write(t, work, map[string]string{"a": "2\n", "b": "b\n"})
	first := patchOf(t, r)

	work2, r2 := baseline(t, dir)
	must(t, Apply(t.Context(), work2, first))
	must(t, r2.Baseline(t.Context()))
	write(t, work2, map[string]string{"a": "3\n"})
	second := patchOf(t, r2)
	if bytes.Contains(second, []byte("b/b")) {
		t.Errorf("the second patch repeats the first:\n%s", second)
	}
	must(t, Apply(t.Context(), dir, first))
	must(t, Apply(t.Context(), dir, second))
	sameTree(t, tree(t, dir), map[string]string{"a": "3\n", "b": "b\n"})
}

// Links that lead out and special files are no part of a patch, which says so and
// has all the rest. A file that became one of them is not taken for deleted.
func TestPatchLeavesOutWhatItCannotCarry(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n", "became": "b\n", "deleted": "d\n", ".gitignore": "venv/\n"})
	work, r := baseline(t, dir)
	write(t, work, map[string]string{"a": "2\n", "venv/x": "x\n"})
	must(t, os.Remove(filepath.Join(work, "became")))
	must(t, os.Remove(filepath.Join(work, "deleted")))
	must(t, syscall.Mkfifo(filepath.Join(work, "became"), 0o600))
	must(t, os.Symlink("/usr/bin/python3", filepath.Join(work, "venv/python"))) // ignored: not worth a word
	for _, target := range []string{"/etc/passwd", "../x", "a/../../x", ".git/config"} {
		at := filepath.Join(work, "evil\n")
		must(t, os.Symlink(target, at))
		p := patchOf(t, r)
		if got, want := strings.Join(r.LeftOut(), ", "), `became (a named pipe), "evil\n" (a link to `+target+`)`; got != want {
			t.Errorf("left out %s, want %s", got, want)
		}
		if bytes.Contains(p, []byte("evil")) || bytes.Contains(p, []byte("became")) || !bytes.Contains(p, []byte("+2\n")) || !bytes.Contains(p, []byte("deleted file mode")) {
			t.Errorf("with a link to %s:\n%s", target, p)
		}
		must(t, os.Remove(at))
	}
	must(t, os.Remove(filepath.Join(work, "became")))
	must(t, os.Symlink("a", filepath.Join(work, "good")))
	p := patchOf(t, r)
	if !bytes.Contains(p, []byte("120000")) || !bytes.Contains(p, []byte("became")) || len(r.LeftOut()) != 0 {
		t.Errorf("a link that stays inside, or a deletion, is missing; left out %v:\n%s", r.LeftOut(), p)
	}
}

// A checkpoint sees every change that a stat shows; code that hides one from it
// does not hide it from the turn's patch.
func TestCheckpoint(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n", "b": "1\n", "c": "1\n"})
	tarball, _ := packed(t, dir)
	work := staged(t, tarball)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, name := range []string{"a", "b", "c"} {
		must(t, os.Chtimes(filepath.Join(work, name), old, old))
	}
	r, err := Init(filepath.Join(t.TempDir(), "git"), work)
	must(t, err)
	must(t, r.Baseline(t.Context()))
	write(t, work, map[string]string{"a": "2\n", "b": "2\n", "new": "n\n"})
	must(t, os.Chtimes(filepath.Join(work, "b"), old, old)) // same size, same time
	seen := func(patch func(context.Context) ([]byte, bool, error)) string {
		p, _, err := patch(t.Context())
		must(t, err)
		var names []string
		for _, m := range regexp.MustCompile(`(?m)^diff --git a/(\S+)`).FindAllSubmatch(p, -1) {
			names = append(names, string(m[1]))
		}
		return strings.Join(names, " ")
	}
	if got := seen(r.Checkpoint); got != "a new" {
		t.Errorf("the checkpoint has %q", got)
	}
	if got := seen(r.Patch); got != "a b new" {
		t.Errorf("the patch has %q", got)
	}
}

// Code may take its owner's rights away; the patch is complete all the same.
func TestPatchReadsWhatCodeHid(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n", "d/b": "1\n"})
	work, r := baseline(t, dir)
	write(t, work, map[string]string{"a": "2\n", "d/b": "2\n"})
	must(t, os.Chmod(filepath.Join(work, "a"), 0))
	must(t, os.Chmod(filepath.Join(work, "d"), 0))
	p := patchOf(t, r)
	for _, name := range []string{"a/a", "a/d/b"} {
		if !bytes.Contains(p, []byte(name)) {
			t.Errorf("%s is missing in\n%s", name, p)
		}
	}
}

func TestApplyChangesNothingWhenItDoesNotApply(t *testing.T) {
	dir := repository(t, map[string]string{"a.txt": "one\ntwo\n", "b.txt": "b\n"})
	work, r := baseline(t, dir)
	write(t, work, map[string]string{"a.txt": "one\nTWO\n", "b.txt": "B\n", "new.txt": "n\n"})
	p := patchOf(t, r)

	write(t, dir, map[string]string{"b.txt": "mine\n"})
	before := tree(t, dir)
	wantCode(t, Apply(t.Context(), dir, p), protocol.CodeConflict, "b.txt", "changed since", "nothing was changed")
	sameTree(t, tree(t, dir), before)

	write(t, dir, map[string]string{"b.txt": "b\n", "new.txt": "mine\n"})
	before = tree(t, dir)
	wantCode(t, Apply(t.Context(), dir, p), protocol.CodeConflict, "new.txt")
	sameTree(t, tree(t, dir), before)

	must(t, os.Remove(filepath.Join(dir, "new.txt")))
	must(t, Apply(t.Context(), dir, p)) // the positive twin
	sameTree(t, tree(t, dir), tree(t, work))
}

// Hostile patches, as a runner's owner could send them.
func TestApplyRefuses(t *testing.T) {
	const adds = "diff --git a/%s b/%s\nnew file mode %m\nindex 0000000000000000000000000000000000000000..0000000000000000000000000000000000000000\n--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+%c\n"
	add := func(name, mode, content string) string {
		p := strings.NewReplacer("%s", name, "%m", mode, "%c", content).Replace(adds)
		if mode == "120000" {
			p += "\\ No newline at end of file\n"
		}
		return strings.Replace(p, "index 0000000000000000000000000000000000000000..0000000000000000000000000000000000000000\n", "", 1)
	}
	outside := t.TempDir()
	for name, tc := range map[string]struct {
		patch string
		code  protocol.Code
		words []string
	}{
		"a hook":             {add(".git/hooks/post-checkout", "100755", "evil"), protocol.CodePolicyDenied, []string{".git"}},
		"a hook, other case": {add(".GIT/hooks/post-checkout", "100755", "evil"), protocol.CodePolicyDenied, nil},
		"a nested hook":      {add("sub/.git/hooks/x", "100755", "evil"), protocol.CodePolicyDenied, nil},
		".bivouac":           {add(".bivouac/x", "100644", "evil"), protocol.CodePolicyDenied, nil},
		"..":                 {add("../evil", "100644", "evil"), protocol.CodeInvalidArgument, nil},
		"a link out":         {add("evil", "120000", "/etc"), protocol.CodePolicyDenied, []string{"evil", "/etc"}},
		"a link to .git":     {add("evil", "120000", ".git/config"), protocol.CodePolicyDenied, nil},
		"through a link":     {add("out/evil", "100644", "evil"), protocol.CodePolicyDenied, []string{"out"}},
		"a submodule":        {add("sub", "160000", "Subproject commit 1234567890123456789012345678901234567890"), protocol.CodePolicyDenied, nil},
		"garbage":            {"this is no patch\n", protocol.CodeDataLoss, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, map[string]string{"a": "1\n"})
			must(t, os.Symlink(outside, filepath.Join(dir, "out"))) // the person's own link
			before := tree(t, dir)
			wantCode(t, Apply(t.Context(), dir, []byte(tc.patch)), tc.code, tc.words...)
			sameTree(t, tree(t, dir), before)
			if left, _ := os.ReadDir(outside); len(left) != 0 {
				t.Errorf("written outside: %v", left)
			}
			must(t, Apply(t.Context(), dir, []byte(add("fine", "100644", "good")))) // the positive twin
		})
	}
}

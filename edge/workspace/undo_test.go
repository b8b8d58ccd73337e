package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
)

// An existing folder where the patch adds a file is found before anything
// changes, also when nothing is in it.
func TestApplyFindsFoldersInTheWay(t *testing.T) {
	for name, in := range map[string]string{"empty": "newf", "empty below": "newf/sub", "outside of the patch": "newf/mine.txt"} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, map[string]string{"lib.sh": "one\n", "d/old": "o\n"})
			work, r := baseline(t, dir)
			write(t, work, map[string]string{"lib.sh": "two\n", "newf": "new\n"})
			must(t, os.RemoveAll(filepath.Join(work, "d")))
			p := patchOf(t, r)

			if filepath.Ext(in) != "" {
				write(t, dir, map[string]string{in: "mine\n"})
			} else {
				must(t, os.MkdirAll(filepath.Join(dir, in), 0o755))
			}
			before := tree(t, dir)
			wantCode(t, Apply(t.Context(), dir, p), protocol.CodeConflict, "newf", "nothing was changed")
			sameTree(t, tree(t, dir), before)

			must(t, os.RemoveAll(filepath.Join(dir, "newf"))) // the positive twin
			must(t, Apply(t.Context(), dir, p))
			sameTree(t, tree(t, dir), tree(t, work))
		})
	}
}

// A folder in which no name may be taken away is found before anything changes.
func TestApplyFindsMissingRights(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("nothing is forbidden to root")
	}
	dir := repository(t, map[string]string{"a": "1\n", "z/gone": "g\n"})
	work, r := baseline(t, dir)
	write(t, work, map[string]string{"a": "2\n"})
	must(t, os.RemoveAll(filepath.Join(work, "z")))
	p := patchOf(t, r)
	before := tree(t, dir)
	must(t, os.Chmod(filepath.Join(dir, "z"), 0o500))
	err := Apply(t.Context(), dir, p)
	must(t, os.Chmod(filepath.Join(dir, "z"), 0o700))
	wantCode(t, err, protocol.CodeFailedPrecondition, "z/gone", "nothing was changed")
	sameTree(t, tree(t, dir), before)
	must(t, Apply(t.Context(), dir, p)) // the positive twin
	sameTree(t, tree(t, dir), tree(t, work))
}

// What fails between two renames is taken back: contents, modes, links, deleted
// files, and folders that were made.
func TestReplaceTakesBackWhatFails(t *testing.T) {
	results := func() []result {
		return []result{
			{name: "a/room", content: []byte("a file now\n")},
			{name: "a/room/inner", deleted: true},
			{name: "gone/only", deleted: true},
			{name: "lib.sh", content: []byte("two\n"), exec: true},
			{name: "link", target: "lib.sh"},
			{name: "new/deep/file", content: []byte("new\n")},
			{name: "was-file", deleted: true},
			{name: "was-file/inner", content: []byte("i\n")},
			{name: "zz", content: []byte("z\n")},
		}
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"a/room/inner": "r\n", "gone/only": "g\n", "lib.sh": "one\n", "link": "-> gone/only", "was-file": "f\n", "zz/in-the-way": "mine\n"})
	must(t, os.Chmod(filepath.Join(dir, "lib.sh"), 0o640))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()

	before := tree(t, dir)
	wantCode(t, replace(root, results()), protocol.CodeFailedPrecondition, "zz", "nothing was changed")
	sameTree(t, tree(t, dir), before)
	if st, err := os.Stat(filepath.Join(dir, "lib.sh")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("lib.sh: %v, %v", st, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
		t.Error("a folder that was made is still there")
	}

	must(t, os.RemoveAll(filepath.Join(dir, "zz"))) // the positive twin
	must(t, replace(root, results()))
	sameTree(t, tree(t, dir), map[string]string{
		"a/room": "a file now\n", "lib.sh*": "two\n", "link": "-> lib.sh", "new/deep/file": "new\n", "was-file/inner": "i\n", "zz": "z\n"})
	if _, err := os.Lstat(filepath.Join(dir, "gone")); err == nil {
		t.Error("a folder that became empty is still there")
	}
}

package workspace

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"bivouac/edge/protocol"
)

// Apply brings a canonical patch into a folder. Git computes the result in a
// directory of its own, from what the patched files hold now; this package then
// checks every name and link of the result and replaces the files one by one. It
// is all or nothing: a patch that does not apply exactly changes nothing, what
// fails half-way is taken back, and there is no three-way merge behind the
// person's back.
func Apply(ctx context.Context, dir string, patch []byte) error {
	if len(patch) > MaxPatchBytes {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the patch has %s, at most %s are applied", bytesText(int64(len(patch))), bytesText(MaxPatchBytes))
	}
	if len(bytes.TrimSpace(patch)) == 0 {
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the folder cannot be opened: %w", err)
	}
	defer root.Close()
	scratch, err := os.MkdirTemp("", "bivouac-apply-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	gitDir := filepath.Join(scratch, "git")
	if err := makeGitDir(gitDir); err != nil {
		return err
	}
	a := applying{Repo: Repo{gitDir: gitDir, workTree: abs}, root: root, dir: abs, patch: patch}
	results, err := a.results(ctx)
	if err != nil {
		return err
	}
	return replace(root, results)
}

// applying is one call of Apply.
type applying struct {
	Repo
	root  *os.Root
	dir   string
	patch []byte
}

// results computes what each file of the patch becomes.
func (a *applying) results(ctx context.Context) ([]result, error) {
	names, err := a.names(ctx)
	if err != nil {
		return nil, err
	}
	var before []change
	for _, name := range names {
		e, err := a.present(name, names)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		before = append(before, change{entry: e})
	}
	if err := a.commit(ctx, a.root, refBase, "", before); err != nil {
		return nil, err
	}
	if _, err := a.bare(ctx, nil, nil, "read-tree", refBase); err != nil {
		return nil, err
	}
	if _, err := a.bare(ctx, bytes.NewReader(a.patch), nil, "apply", "--cached", "--whitespace=nowarn", "-"); err != nil {
		return nil, a.refused(ctx, err)
	}
	return a.difference(ctx)
}

// names are the paths of the patch, checked.
func (a *applying) names(ctx context.Context) ([]string, error) {
	out, err := a.bare(ctx, bytes.NewReader(a.patch), nil, "apply", "--numstat", "-z", "-")
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the patch is damaged: %w", err)
	}
	var names []string
	for row := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		cols := strings.SplitN(row, "\t", 3)
		if len(cols) != 3 {
			return nil, protocol.Errorf(protocol.CodeDataLoss, "the patch is damaged: %.80q", row)
		}
		if err := checkName(cols[2]); err != nil {
			return nil, err
		}
		names = append(names, cols[2])
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// present reads what lies at a name now. A name behind a link is refused: it
// would be written somewhere else. A folder may become a file, and a file a
// folder, when the patch speaks of all that is in the way.
func (a *applying) present(name string, names []string) (entry, error) {
	if err := realParents(a.root, name, names); err != nil {
		return entry{}, err
	}
	st, err := lstatReal(a.root, name)
	if err != nil {
		return entry{}, err
	}
	e := entry{name: name, exec: st.Mode()&0o100 != 0, size: st.Size(), stat: st}
	switch {
	case st.Mode().IsRegular():
		return e, nil
	case st.Mode()&fs.ModeSymlink != 0:
		e.target, err = a.root.Readlink(name)
		e.size = int64(len(e.target))
		return e, err
	case st.IsDir() && a.cleared(name, names):
		return entry{}, fs.ErrNotExist
	}
	return entry{}, protocol.Errorf(protocol.CodeConflict, "the patch changes %q, which is %s in %s; nothing was changed", name, kindOf(st.Mode()), a.dir)
}

// cleared reports that the folder goes away with the files that the patch speaks
// of: it names each one below it, and no folder below it is empty.
func (a *applying) cleared(dir string, names []string) bool {
	return fs.WalkDir(a.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if _, listed := slices.BinarySearch(names, name); !d.IsDir() && !listed {
			return fs.ErrExist
		}
		if !d.IsDir() {
			return nil
		}
		inside, err := fs.ReadDir(a.root.FS(), name)
		if err == nil && len(inside) == 0 {
			err = fs.ErrExist
		}
		return err
	}) == nil
}

// realParents refuses a name one of whose folders is a link, or a file that the
// patch does not speak of.
func realParents(root *os.Root, name string, names []string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if err := realParents(root, dir, names); err != nil {
		return err
	}
	st, err := root.Lstat(dir)
	_, listed := slices.BinarySearch(names, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		return err
	case st.IsDir(), listed && st.Mode().IsRegular():
		return nil
	case st.Mode()&fs.ModeSymlink != 0:
		return protocol.Errorf(protocol.CodePolicyDenied, "the patch changes %q, and %q is a link: patches are not applied through links; nothing was changed", name, dir)
	}
	return protocol.Errorf(protocol.CodeConflict, "the patch changes %q, and %q is %s; nothing was changed", name, dir, kindOf(st.Mode()))
}

// refusedFile finds the file in the messages of `git apply`.
var refusedFile = regexp.MustCompile(`(?m)^error: (?:patch failed: (.+):\d+|(.+?): (?:patch does not apply|already exists in index|does not exist in index|does not match index|cannot read .*|wrong type|No such file or directory))$`)

// refused turns a failed `git apply` into what a person can act on.
func (a *applying) refused(ctx context.Context, err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	if _, rerr := a.bare(ctx, bytes.NewReader(a.patch), nil, "apply", "--cached", "--check", "--reverse", "--whitespace=nowarn", "-"); rerr == nil {
		return protocol.Errorf(protocol.CodeAlreadyExists, "%s already has this change; nothing was done", a.dir)
	}
	var files []string
	for _, m := range refusedFile.FindAllStringSubmatch(ge.stderr, -1) {
		files = append(files, m[1]+m[2])
	}
	slices.Sort(files)
	files = slices.Compact(files)
	if len(files) == 0 {
		return protocol.Errorf(protocol.CodeConflict, "the patch does not apply to %s (%s); nothing was changed", a.dir, ge.stderr)
	}
	return protocol.Errorf(protocol.CodeConflict,
		"the patch does not apply to %s: %s changed since the turn was given the folder; nothing was changed. Bring these files back to what they were (`git stash`), apply again, then merge your change (`git stash pop`)",
		a.dir, strings.Join(files, ", "))
}

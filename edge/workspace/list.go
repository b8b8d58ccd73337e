package workspace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// maxNesting bounds repositories inside repositories.
const maxNesting = 8

// topOf finds the folder whose .git makes dir part of a repository.
func topOf(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", protocol.Errorf(protocol.CodeFailedPrecondition,
				"%s is not in a git repository, and only what git knows or does not ignore is carried: run `git init` there (nothing needs to be committed), or name another folder with --workspace", dir)
		}
	}
}

// listed is what git says of a folder: names of tracked and of untracked, not
// ignored files, sorted, and the commit of HEAD ("" before the first one).
type listed struct {
	names  []string
	head   string
	nested []string // repositories inside, whose .git is not carried
}

// list asks git for names alone; contents are read elsewhere. A repository
// inside, a submodule or not, is asked in turn.
func list(ctx context.Context, root *os.Root, dir string) (listed, error) {
	top, err := topOf(dir)
	if err != nil {
		return listed{}, err
	}
	var l listed
	head, err := in(dir, top).run(ctx, "rev-parse", "--verify", "--quiet", "HEAD")
	switch {
	case err == nil:
		l.head = strings.TrimSpace(string(head))
	case exitCode(err) != 1:
		return listed{}, unreadable(dir, err)
	}
	if err := l.gather(ctx, root, dir, "", top, 0); err != nil {
		return listed{}, err
	}
	slices.Sort(l.names)
	l.names = slices.Compact(l.names)
	slices.Sort(l.nested)
	return l, nil
}

// in is git in a folder whose repository is top's and no outer one's.
func in(dir, top string) git {
	return git{dir: dir, workTree: top, extra: []string{"GIT_CEILING_DIRECTORIES=" + filepath.Dir(top)}}
}

func (l *listed) gather(ctx context.Context, root *os.Root, base, prefix, top string, depth int) error {
	if depth > maxNesting {
		return protocol.Errorf(protocol.CodeInvalidArgument, "repositories are nested deeper than %d at %q", maxNesting, prefix)
	}
	dir := filepath.Join(base, filepath.FromSlash(prefix))
	out, err := in(dir, top).run(ctx, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return unreadable(dir, err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		full := path.Join(prefix, name)
		inner, err := isRepository(root, full)
		if err != nil {
			return err
		}
		if !inner {
			l.names = append(l.names, strings.TrimSuffix(full, "/"))
			continue
		}
		l.nested = append(l.nested, full)
		if err := l.gather(ctx, root, base, full, filepath.Join(base, filepath.FromSlash(full)), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// isRepository reports a real folder with a .git in it: what git lists by its
// folder name alone.
func isRepository(root *os.Root, name string) (bool, error) {
	st, err := lstatReal(root, strings.TrimSuffix(name, "/"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // tracked, and deleted in the folder
	case err != nil:
		return false, err
	case !st.IsDir():
		return false, nil
	}
	_, err = root.Lstat(path.Join(name, ".git"))
	return err == nil, nil
}

func unreadable(dir string, err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"git cannot read the repository at %s (%s): check it with `git -C %s status`", dir, ge.stderr, dir)
}

package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"bivouac/edge/protocol"
)

// result is what one file becomes.
type result struct {
	name    string
	deleted bool
	exec    bool
	target  string // of a link
	content []byte
	temp    string // holds content until all are written
}

// difference lists what the patch made of the base, checked.
func (r *Repo) difference(ctx context.Context) ([]result, error) {
	out, err := r.bare(ctx, nil, nil, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--full-index", "--no-abbrev", refBase)
	if err != nil {
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	var results []result
	for i := 0; i+1 < len(fields); i += 2 {
		// ":100644 100755 <id> <id> M", then the name.
		row := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		if len(row) != 5 {
			return nil, fmt.Errorf("git diff-index answered %q", fields[i])
		}
		res := result{name: fields[i+1], deleted: row[4] == "D", exec: row[1] == "100755"}
		if err := checkName(res.name); err != nil {
			return nil, err
		}
		if !res.deleted {
			if err := r.fill(ctx, &res, row[1], row[3]); err != nil {
				return nil, err
			}
		}
		results = append(results, res)
	}
	return results, nil
}

func (r *Repo) fill(ctx context.Context, res *result, mode, id string) (err error) {
	switch mode {
	case "100644", "100755", "120000":
	default:
		return protocol.Errorf(protocol.CodePolicyDenied, "the patch makes %q an entry of mode %s: only files and links are applied; nothing was changed", res.name, mode)
	}
	if res.content, err = r.bare(ctx, nil, nil, "cat-file", "blob", id); err != nil {
		return err
	}
	if mode == "120000" {
		res.target, res.content = string(res.content), nil
		return checkLink(res.name, res.target)
	}
	return nil
}

// replace writes every new content into a temporary file first, and tries whether
// a deletion is allowed; so a full disk or a missing right is found before anything
// changed. Then the files are renamed into place. What was there is kept until the
// last one is: when a rename fails, all of it is put back.
func replace(root *os.Root, results []result) error {
	r := replacing{root: root, results: results, added: map[string]bool{}}
	suffix := make([]byte, 6)
	rand.Read(suffix)
	r.prefix = fmt.Sprintf(".bivouac-%x-", suffix)
	defer r.tidy()
	for i := range results {
		r.added[results[i].name] = !results[i].deleted
		if err := results[i].prepare(root, fmt.Sprintf("%s%d", r.prefix, i)); err != nil {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "%q cannot be written: %w; nothing was changed", results[i].name, err)
		}
	}
	for _, deletions := range []bool{true, false} { // first: a deleted file may make room for a folder
		for i := range results {
			if results[i].deleted != deletions {
				continue
			}
			if err := r.commit(i); err != nil {
				return r.undo(results[i].name, err)
			}
		}
	}
	for _, s := range r.done {
		if s.kept != "" {
			root.Remove(s.kept)
		}
		if s.deleted {
			pruneEmpty(root, path.Dir(s.name))
		}
	}
	return nil
}

// prepare writes the new content under a temporary name in the nearest folder
// that is there already. For a deletion it tries the folder alone.
func (res *result) prepare(root *os.Root, temp string) error {
	dir := path.Dir(res.name)
	if res.deleted {
		return tryWrite(root, path.Join(dir, temp))
	}
	for dir != "." {
		if st, err := root.Lstat(dir); err == nil && st.IsDir() {
			break
		}
		dir = path.Dir(dir)
	}
	temp = path.Join(dir, temp)
	if res.target != "" {
		if err := root.Symlink(res.target, temp); err != nil {
			return err
		}
		res.temp = temp
		return nil
	}
	perm := fs.FileMode(0o666)
	if res.exec {
		perm = 0o777
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm) // the umask applies
	if err != nil {
		return err
	}
	res.temp = temp
	_, err = bytes.NewReader(res.content).WriteTo(f)
	if st, serr := root.Lstat(res.name); serr == nil && st.Mode().IsRegular() {
		err = errors.Join(err, f.Chmod(keptMode(st.Mode().Perm(), res.exec)))
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// tryWrite reports whether names can be made, and so taken away, in a folder.
func tryWrite(root *os.Root, temp string) error {
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), root.Remove(temp))
}

// keptMode keeps what the person chose and changes the executable bits alone.
func keptMode(old fs.FileMode, exec bool) fs.FileMode {
	if !exec {
		return old &^ 0o111
	}
	return old | (old&0o444)>>2
}

// pruneEmpty removes folders that a deletion left empty, as git does.
func pruneEmpty(root *os.Root, dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		st, err := root.Lstat(dir)
		if err == nil && !st.IsDir() || root.Remove(dir) != nil { // a file may have its place now
			return
		}
	}
}

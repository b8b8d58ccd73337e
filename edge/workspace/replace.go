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

// replace writes every new content into a temporary file first; when all of that
// went well, the files are renamed into place. So a full disk or a missing right
// is found before anything changed.
func replace(root *os.Root, results []result) error {
	suffix := make([]byte, 6)
	rand.Read(suffix)
	defer func() {
		for _, res := range results {
			if res.temp != "" {
				root.Remove(res.temp)
			}
		}
	}()
	for i := range results {
		if err := results[i].prepare(root, fmt.Sprintf(".bivouac-%x-%d", suffix, i)); err != nil {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "%q cannot be written: %w; nothing was changed", results[i].name, err)
		}
	}
	var done []string
	for _, deletions := range []bool{true, false} { // first: a deleted file may make room for a folder
		for i := range results {
			res := &results[i]
			if res.deleted != deletions {
				continue
			}
			if err := res.commit(root); err != nil {
				return protocol.Errorf(protocol.CodeDataLoss, "%q cannot be replaced: %w; already changed: %s", res.name, err, strings.Join(done, ", "))
			}
			done = append(done, res.name)
		}
	}
	return nil
}

func (res *result) commit(root *os.Root) error {
	if res.deleted {
		err := root.Remove(res.name)
		pruneEmpty(root, path.Dir(res.name))
		return err
	}
	if err := root.MkdirAll(path.Dir(res.name), 0o777); err != nil {
		return err
	}
	if err := root.Rename(res.temp, res.name); err != nil {
		return err
	}
	res.temp = ""
	return nil
}

// prepare writes the new content under a temporary name in the nearest folder
// that is there already.
func (res *result) prepare(root *os.Root, temp string) error {
	if res.deleted {
		return nil
	}
	dir := path.Dir(res.name)
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
		if root.Remove(dir) != nil {
			return
		}
	}
}

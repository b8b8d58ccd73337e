package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bivouac/edge/protocol"
)

// MaxPatchBytes bounds a canonical patch.
const MaxPatchBytes = 64 << 20

const (
	refBase  = "refs/bivouac/base"
	refFinal = "refs/bivouac/final"
)

// plainAttributes outrank every .gitattributes of a tree: contents pass as they
// are, and what is text is judged by content alone.
const plainAttributes = "* -text -crlf -eol -ident -filter -working-tree-encoding !diff !merge !conflict-marker-size !whitespace !export-subst !export-ignore\n"

// Repo is the runner's own git directory for one workspace. It lies outside of
// it, has an empty configuration, and is never shown to a sandbox. Git reads no
// file of the workspace but its .gitignore files: contents are handed to it as
// objects, and the patch is the difference of two trees.
type Repo struct {
	gitDir   string
	workTree string
	limits   Limits
	// base is what Baseline saw: name → mode and object id.
	base map[string]object
	seen string // fingerprint of the last look
	// read is what files held when they were last read, for Checkpoint.
	read map[string]reading
	// left is what the last patch could not carry.
	left []string
}

type object struct{ mode, id string }

// reading of one file: its object id, and the stat that it had then.
type reading struct {
	id       string
	size     int64
	modified time.Time
	at       time.Time
}

// settled is how long a file must be unchanged before a later change is sure to
// show in its time.
const settled = 2 * time.Second

// Init makes the git directory, 0700, which must not exist.
func Init(gitDir, workTree string) (*Repo, error) {
	if err := makeGitDir(gitDir); err != nil {
		return nil, err
	}
	return &Repo{gitDir: gitDir, workTree: workTree, limits: DefaultLimits()}, nil
}

// makeGitDir writes the least that git takes for a repository. `git init` would
// copy templates and write settings.
func makeGitDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, sub := range []string{"objects", "refs", "info"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/none\n", "config": "", "info/attributes": plainAttributes} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// bare runs git without any work tree near.
func (r *Repo) bare(ctx context.Context, in io.Reader, out io.Writer, args ...string) ([]byte, error) {
	return git{dir: r.gitDir, gitDir: r.gitDir, input: in, output: out}.run(ctx, append([]string{"--bare"}, args...)...)
}

// Baseline records the tree that patches are computed against.
func (r *Repo) Baseline(ctx context.Context) error {
	root, err := os.OpenRoot(r.workTree)
	if err != nil {
		return err
	}
	defer root.Close()
	all, err := scan(ctx, root)
	if err != nil {
		return err
	}
	r.base, r.read = make(map[string]object, len(all)), make(map[string]reading, len(all))
	var changes []change
	for _, e := range all {
		if e.special() {
			continue
		}
		id, err := r.identify(root, e, false)
		if err != nil {
			return err
		}
		r.base[e.name] = object{e.mode(), id}
		changes = append(changes, change{entry: e})
	}
	r.seen = fingerprint(all)
	return r.commit(ctx, root, refBase, "", changes)
}

// Changed reports whether a stat of the tree differs from the last look, and
// takes another. It may report a change that left the same contents.
func (r *Repo) Changed(ctx context.Context) (bool, error) {
	root, err := os.OpenRoot(r.workTree)
	if err != nil {
		return false, err
	}
	defer root.Close()
	all, err := scan(ctx, root)
	if err != nil {
		return false, err
	}
	before := r.seen
	r.seen = fingerprint(all)
	return r.seen != before, nil
}

// Patch is the canonical difference between the baseline and the tree as it
// lies there; empty means no difference. New files that the tree's .gitignore
// files name are not part of it, nor is what LeftOut tells of. No process may run
// in the workspace meanwhile.
func (r *Repo) Patch(ctx context.Context) (patch []byte, empty bool, err error) {
	return r.patch(ctx, false)
}

// Checkpoint is Patch that does not read a file again whose size and time have
// not changed. Code that sets times back can hide a change from it; the patch of
// the whole turn reads everything.
func (r *Repo) Checkpoint(ctx context.Context) (patch []byte, empty bool, err error) {
	return r.patch(ctx, true)
}

// LeftOut names what the last patch does not carry, each with what it is: links
// that lead out of the workspace and special files. A file of the baseline that
// became one of these stays in the patch's eyes what it was.
func (r *Repo) LeftOut() []string { return r.left }

func (r *Repo) leaveOut(name, what string) {
	r.left = append(r.left, fmt.Sprintf("%s (%s)", shown(name), what))
}

// shown is a name as a person can read it; code chose it.
func shown(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

func (r *Repo) patch(ctx context.Context, trust bool) (patch []byte, empty bool, err error) {
	if r.base == nil {
		return nil, false, errors.New("workspace: Patch before Baseline")
	}
	root, err := os.OpenRoot(r.workTree)
	if err != nil {
		return nil, false, err
	}
	defer root.Close()
	changes, err := r.changes(ctx, root, trust)
	if err != nil || len(changes) == 0 {
		return nil, err == nil, err
	}
	if err := r.commit(ctx, root, refFinal, refBase, changes); err != nil {
		return nil, false, err
	}
	out := &bounded{max: MaxPatchBytes}
	_, err = r.bare(ctx, nil, out, "diff-tree", "-p", "-r", "--binary", "--full-index", "--no-renames",
		"--no-ext-diff", "--no-textconv", "--no-color", "--unified=3", "--diff-algorithm=myers",
		"--src-prefix=a/", "--dst-prefix=b/", refBase, refFinal)
	if out.over {
		return nil, false, protocol.Errorf(protocol.CodePolicyDenied,
			"the change is larger than %s as a patch: it holds build products that no .gitignore names", bytesText(MaxPatchBytes))
	}
	return out.buf.Bytes(), out.buf.Len() == 0, err
}

// change is one difference to the baseline.
type change struct {
	entry
	deleted bool
}

func (r *Repo) changes(ctx context.Context, root *os.Root, trust bool) ([]change, error) {
	all, err := scan(ctx, root)
	if err != nil {
		return nil, err
	}
	ignored, err := r.ignored(ctx, all)
	if err != nil {
		return nil, err
	}
	r.left = nil
	count := tally{limits: r.limits}
	present := make(map[string]bool, len(all))
	var changes []change
	for _, e := range all {
		if ignored[e.name] {
			continue
		}
		present[e.name] = true
		if e.special() {
			r.leaveOut(e.name, kindOf(e.stat.Mode()))
			continue
		}
		if err := count.add(e.name, e.size); err != nil {
			return nil, err
		}
		id, err := r.identify(root, e, trust)
		if err != nil {
			return nil, err
		}
		if r.base[e.name] == (object{e.mode(), id}) {
			continue
		}
		if e.target != "" && checkLink(e.name, e.target) != nil {
			r.leaveOut(e.name, "a link to "+shown(e.target))
			continue
		}
		changes = append(changes, change{entry: e})
	}
	for name := range r.base {
		if !present[name] {
			changes = append(changes, change{entry: entry{name: name}, deleted: true})
		}
	}
	return changes, nil
}

// identify is the object id of what an entry holds.
func (r *Repo) identify(root *os.Root, e entry, trust bool) (string, error) {
	was, known := r.read[e.name]
	modified := e.stat.ModTime()
	if trust && known && e.target == "" && was.size == e.size && was.modified.Equal(modified) && was.at.Sub(modified) > settled {
		return was.id, nil
	}
	at := time.Now()
	id, err := e.blobID(root)
	if err == nil {
		r.read[e.name] = reading{id: id, size: e.size, modified: modified, at: at}
	}
	return id, err
}

// ignored asks git which new files the tree itself calls ignored.
func (r *Repo) ignored(ctx context.Context, all []entry) (map[string]bool, error) {
	var names bytes.Buffer
	for _, e := range all {
		if _, known := r.base[e.name]; !known {
			names.WriteString("./" + e.name) // a name may begin with ":", which is magic
			names.WriteByte(0)
		}
	}
	if names.Len() == 0 {
		return nil, nil
	}
	out, err := git{dir: r.workTree, gitDir: r.gitDir, workTree: r.workTree, input: &names}.run(ctx, "check-ignore", "--no-index", "-z", "--stdin")
	if err != nil && exitCode(err) != 1 { // 1: none is
		return nil, err
	}
	ignored := map[string]bool{}
	for name := range strings.SplitSeq(string(out), "\x00") {
		ignored[strings.TrimPrefix(name, "./")] = true
	}
	return ignored, nil
}

// bounded keeps at most max bytes; more is an error for the writer.
type bounded struct {
	max  int
	buf  bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.max {
		b.over = true
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

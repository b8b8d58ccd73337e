package workspace

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"bivouac/edge/protocol"
)

// baseName is the entry that describes the others. It is the last one, and is
// never written into a workspace.
const baseName = ".bivouac/base.json"

// Base names the tree a turn starts from.
type Base struct {
	// Head is the commit that was checked out; empty before the first.
	Head string `json:"head"`
	// Digest is SHA-256 over names, modes and contents: equal trees, equal digest.
	Digest string `json:"digest"`
}

// Manifest says what was packed.
type Manifest struct {
	Base
	Files int
	Bytes int64
	// Nested are repositories inside; their files are packed, their .git is not.
	Nested []string
	// Left are names that git lists and that are not carried: protected ones.
	Left []string
}

// Progress of a pack.
type Progress struct {
	Files, OfFiles int
	Bytes          int64
}

// Packer packs. The zero value has default limits and reports no progress.
type Packer struct {
	Limits Limits
	// ProgressFunc is called after each file.
	ProgressFunc func(Progress)
}

// Pack writes the folder to w with default limits.
func Pack(ctx context.Context, dir string, w io.Writer) (Manifest, error) {
	return Packer{}.Pack(ctx, dir, w)
}

// Pack writes a deterministic tar of what git tracks in dir, as it lies there,
// and of what is untracked and not ignored. Nothing of the folder is executed or
// changed.
func (p Packer) Pack(ctx context.Context, dir string, w io.Writer) (Manifest, error) {
	if p.Limits == (Limits{}) {
		p.Limits = DefaultLimits()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Manifest{}, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return Manifest{}, protocol.Errorf(protocol.CodeInvalidArgument, "the workspace cannot be opened: %w; name a folder with --workspace", err)
	}
	defer root.Close()
	l, err := list(ctx, root, abs)
	if err != nil {
		return Manifest{}, err
	}
	k := packing{Packer: p, root: root, out: tar.NewWriter(w), sum: newTreeDigest(), count: tally{limits: p.Limits}, of: len(l.names)}
	k.manifest.Head, k.manifest.Nested = l.head, l.nested
	for _, name := range l.names {
		if err := ctx.Err(); err != nil {
			return Manifest{}, context.Cause(ctx)
		}
		if err := k.entry(name); err != nil {
			return Manifest{}, err
		}
	}
	return k.finish()
}

// packing is one call of Pack.
type packing struct {
	Packer
	root     *os.Root
	out      *tar.Writer
	sum      *treeDigest
	count    tally
	of       int
	manifest Manifest
}

func (k *packing) entry(name string) error {
	if Protected(name) {
		k.manifest.Left = append(k.manifest.Left, name)
		return nil
	}
	if err := checkName(name); err != nil {
		return err
	}
	st, err := lstatReal(k.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // tracked, and deleted in the folder
	} else if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q cannot be read: %w", name, err)
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		err = k.link(name)
	case st.Mode().IsRegular():
		err = k.file(name)
	case st.IsDir():
		return nil // a submodule that is not checked out
	default:
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"%q is %s, and only files, folders and links can be carried: remove it or add it to .gitignore", name, kindOf(st.Mode()))
	}
	if err == nil && k.ProgressFunc != nil {
		k.ProgressFunc(Progress{Files: k.count.files, OfFiles: k.of, Bytes: k.count.bytes})
	}
	return err
}

func (k *packing) link(name string) error {
	target, err := k.root.Readlink(name)
	if err != nil {
		return err
	}
	if err := checkLink(name, target); err != nil {
		return err
	}
	if err := k.count.add(name, int64(len(target))); err != nil {
		return err
	}
	k.sum.link(name, target)
	return k.out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, Format: tar.FormatPAX})
}

func (k *packing) file(name string) error {
	f, err := k.root.OpenFile(name, os.O_RDONLY|openNoFollow|openNonBlock, 0)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q cannot be read: %w", name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return protocol.Errorf(protocol.CodeConflict, "%q changed while it was packed: try again", name)
	}
	if err := k.count.add(name, st.Size()); err != nil {
		return err
	}
	exec := st.Mode()&0o100 != 0
	if err := k.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size(), Mode: tarMode(exec), Format: tar.FormatPAX}); err != nil {
		return err
	}
	content := sha256.New()
	n, err := io.Copy(io.MultiWriter(k.out, content), io.LimitReader(f, st.Size()))
	if err == nil && n == st.Size() {
		var one [1]byte
		if extra, _ := f.Read(one[:]); extra > 0 {
			n++
		}
	}
	if err != nil {
		return err
	}
	if n != st.Size() {
		return protocol.Errorf(protocol.CodeConflict, "%q changed while it was packed: try again", name)
	}
	k.sum.file(name, exec, content.Sum(nil))
	return nil
}

func (k *packing) finish() (Manifest, error) {
	k.manifest.Digest = k.sum.text()
	k.manifest.Files, k.manifest.Bytes = k.count.files, k.count.bytes
	text, err := json.Marshal(k.manifest.Base)
	if err != nil {
		return Manifest{}, err
	}
	if err := k.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: baseName, Size: int64(len(text)), Mode: 0o644, Format: tar.FormatPAX}); err != nil {
		return Manifest{}, err
	}
	if _, err := k.out.Write(text); err != nil {
		return Manifest{}, err
	}
	return k.manifest, k.out.Close()
}

// lstatReal is Lstat for a name whose folders are real ones: behind a link or a
// file it does not exist, as git sees it.
func lstatReal(root *os.Root, name string) (fs.FileInfo, error) {
	for at := path.Dir(name); at != "."; at = path.Dir(at) {
		st, err := root.Lstat(at)
		if errors.Is(err, syscall.ENOTDIR) || err == nil && !st.IsDir() {
			return nil, fs.ErrNotExist
		} else if err != nil {
			return nil, err
		}
	}
	st, err := root.Lstat(name)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fs.ErrNotExist
	}
	return st, err
}

func tarMode(exec bool) int64 {
	if exec {
		return 0o755
	}
	return 0o644
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file (" + strings.TrimSpace(m.Type().String()) + ")"
}

package workspace

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// Bounds of what we walk, ignored files included, however much code left there.
const (
	maxDepth   = 200
	maxEntries = 1_000_000
)

// entry is one file or link of a tree, not yet read; or something that no patch
// can carry.
type entry struct {
	name   string
	exec   bool
	target string // of a link
	size   int64
	stat   fs.FileInfo
}

// special entries are pipes, sockets and devices.
func (e entry) special() bool { return e.target == "" && !e.stat.Mode().IsRegular() }

func (e entry) mode() string {
	switch {
	case e.target != "":
		return "120000"
	case e.exec:
		return "100755"
	}
	return "100644"
}

// scan lists the files, links and special files below root in the order of their
// names. Protected names, which include every nested .git, are left out. No link
// is followed.
func scan(ctx context.Context, root *os.Root) ([]entry, error) {
	var all []entry
	if err := scanFolder(ctx, root, ".", 0, &all); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func scanFolder(ctx context.Context, root *os.Root, dir string, depth int, all *[]entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if depth > maxDepth {
		return protocol.Errorf(protocol.CodePolicyDenied, "folders in the workspace are nested deeper than %d at %.80q", maxDepth, dir)
	}
	d, err := openMended(root, dir, openDirectory)
	if err != nil {
		return err
	}
	found, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	if len(*all)+len(found) > maxEntries {
		return protocol.Errorf(protocol.CodePolicyDenied, "the workspace holds more than %d files, ignored ones included", maxEntries)
	}
	for _, f := range found {
		name := path.Join(dir, f.Name())
		if Protected(f.Name()) {
			continue
		}
		st, err := root.Lstat(name)
		if err != nil {
			return err
		}
		switch {
		case st.IsDir():
			if err := scanFolder(ctx, root, name, depth+1, all); err != nil {
				return err
			}
		case st.Mode().IsRegular():
			*all = append(*all, entry{name: name, exec: st.Mode()&0o100 != 0, size: st.Size(), stat: st})
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := root.Readlink(name)
			if err != nil {
				return err
			}
			*all = append(*all, entry{name: name, target: target, size: int64(len(target)), stat: st})
		default:
			*all = append(*all, entry{name: name, stat: st})
		}
	}
	return nil
}

// openMended opens for reading; code of the workspace may have taken that right
// from its owner.
func openMended(root *os.Root, name string, flags int) (*os.File, error) {
	flags |= os.O_RDONLY | openNoFollow | openNonBlock
	f, err := root.OpenFile(name, flags, 0)
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	st, lerr := root.Lstat(name)
	if lerr != nil || st.Mode()&fs.ModeSymlink != 0 {
		return nil, err
	}
	right := fs.FileMode(0o400)
	if st.IsDir() {
		right = 0o700
	}
	if root.Chmod(name, st.Mode().Perm()|right) != nil {
		return nil, err
	}
	return root.OpenFile(name, flags, 0)
}

// copyContent writes what the entry holds to w, exactly size bytes.
func (e entry) copyContent(root *os.Root, w io.Writer) error {
	if e.target != "" {
		_, err := io.WriteString(w, e.target)
		return err
	}
	f, err := openMended(root, e.name, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := io.Copy(w, io.LimitReader(f, e.size)); err != nil || n != e.size {
		return fmt.Errorf("%q changed while it was read (%d of %d bytes, %v)", e.name, n, e.size, err)
	}
	return nil
}

// blobID is the object id that git gives the content.
func (e entry) blobID(root *os.Root) (string, error) {
	h := newBlob(e.size)
	if err := e.copyContent(root, h); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func newBlob(size int64) hash.Hash {
	h := sha1.New() // git's object format; nothing relies on its strength
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// fingerprint tells trees apart by what a stat says, without reading them. Code
// can deceive it by setting times back; the patch itself reads everything.
func fingerprint(all []entry) string {
	sum := newTreeDigest()
	for _, e := range all {
		var when [8]byte
		binary.BigEndian.PutUint64(when[:], uint64(e.stat.ModTime().UnixNano()))
		sum.parts([]byte(e.name), []byte(e.stat.Mode().String()), []byte(e.target), fmt.Append(nil, e.size), when[:])
	}
	return sum.text()
}

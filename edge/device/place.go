package device

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"bivouac/edge/protocol"
)

// place is one name in one open directory: the path to it holds no link any
// more, and every directory on it was checked.
type place struct {
	dir  *os.Root
	name string // "." for the folder itself
	info fs.FileInfo
}

func (p *place) close() { p.dir.Close() }

func (p *place) exists() bool { return p.info != nil }

// maxLinks bounds the links followed inside a folder.
const maxLinks = 16

// locate finds path for an action. Links that stay inside the folder are
// followed one component at a time, so that a private directory is recognised
// by what it is, not by the name it was reached under.
func (d *Device) locate(action, text string) (*place, error) {
	folder, rest, err := d.folder(action, text)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder.Path)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the folder %q is not there on this machine; its owner should check edge.hcl", folder.Name)
	}
	w := &walk{device: d, asked: text, dirs: []*os.Root{root}}
	p, err := w.to(rest)
	if err != nil {
		w.close(nil)
		return nil, err
	}
	w.close(p.dir)
	return p, nil
}

// folder splits "<folder name>/<relative path>" and checks what the owner allows.
func (d *Device) folder(action, text string) (Folder, []string, error) {
	if strings.ContainsAny(text, "\x00\\") || strings.HasPrefix(text, "/") {
		return Folder{}, nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q is not a path here: it is <folder name>/<relative path> with slashes", text)
	}
	for part := range strings.SplitSeq(text, "/") {
		if part == ".." {
			return Folder{}, nil, protocol.Errorf(protocol.CodePermissionDenied, "%q climbs with \"..\": a path stays below its folder", text)
		}
	}
	name, rest, _ := strings.Cut(path.Clean(text), "/")
	for _, f := range d.folders {
		if f.Name != name {
			continue
		}
		if !f.allows(action) {
			return Folder{}, nil, protocol.Errorf(protocol.CodePermissionDenied,
				"the owner of this machine does not allow %s in the folder %q; they can add it to edge.hcl", action, name)
		}
		if rest == "" {
			return f, nil, nil
		}
		return f, strings.Split(rest, "/"), nil
	}
	return Folder{}, nil, protocol.Errorf(protocol.CodeNotFound, "there is no folder %q on this machine: %s with an empty path names the folders", name, List)
}

// walk goes down one component at a time and keeps every directory open, so that
// ".." in a link goes back to where it came from.
type walk struct {
	device *Device
	asked  string
	dirs   []*os.Root
	links  int
}

func (w *walk) close(except *os.Root) {
	for _, d := range w.dirs {
		if d != except {
			d.Close()
		}
	}
}

func (w *walk) here() *os.Root { return w.dirs[len(w.dirs)-1] }

func (w *walk) to(parts []string) (*place, error) {
	if err := w.refusePrivate(w.here()); err != nil {
		return nil, err
	}
	for len(parts) > 0 {
		name, rest := parts[0], parts[1:]
		if name == ".." {
			if len(w.dirs) == 1 {
				return nil, w.leaves()
			}
			w.here().Close()
			w.dirs = w.dirs[:len(w.dirs)-1]
			parts = rest
			continue
		}
		info, err := w.here().Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && len(rest) == 0:
			return &place{dir: w.here(), name: name}, nil
		case err != nil:
			return nil, w.wrong(err)
		case info.Mode()&fs.ModeSymlink != 0:
			if parts, err = w.follow(name, rest); err != nil {
				return nil, err
			}
		case len(rest) == 0 && !info.IsDir():
			return &place{dir: w.here(), name: name, info: info}, nil
		case !info.IsDir():
			return nil, protocol.Errorf(protocol.CodeNotFound, "%q goes through a file that is not a folder", w.asked)
		default:
			if err := w.enter(name, info); err != nil {
				return nil, err
			}
			parts = rest
		}
	}
	info, err := w.here().Stat(".")
	if err != nil {
		return nil, w.wrong(err)
	}
	return &place{dir: w.here(), name: ".", info: info}, nil
}

// follow replaces a link by the components of its target.
func (w *walk) follow(name string, rest []string) ([]string, error) {
	if w.links++; w.links > maxLinks {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "%q goes through too many links", w.asked)
	}
	target, err := w.here().Readlink(name)
	if err != nil {
		return nil, w.wrong(err)
	}
	target = filepath.ToSlash(target)
	if path.IsAbs(target) || filepath.IsAbs(target) || filepath.VolumeName(target) != "" {
		return nil, w.leaves()
	}
	var parts []string
	for part := range strings.SplitSeq(target, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return append(parts, rest...), nil
}

func (w *walk) enter(name string, seen fs.FileInfo) error {
	sub, err := w.here().OpenRoot(name)
	if err != nil {
		return w.wrong(err)
	}
	w.dirs = append(w.dirs, sub)
	now, err := sub.Stat(".")
	if err != nil {
		return w.wrong(err)
	}
	if !os.SameFile(seen, now) {
		return protocol.Errorf(protocol.CodeConflict, "%q changed while it was opened; try again", w.asked)
	}
	return w.refusePrivate(sub)
}

func (w *walk) refusePrivate(dir *os.Root) error {
	info, err := dir.Stat(".")
	if err != nil {
		return w.wrong(err)
	}
	if w.device.isPrivate(info) {
		return protocol.Errorf(protocol.CodePermissionDenied, "%q lies in Bivouac's own directory, which no action reaches", w.asked)
	}
	return nil
}

func (d *Device) isPrivate(info fs.FileInfo) bool {
	for _, p := range d.private {
		if own, err := os.Stat(p); err == nil && os.SameFile(own, info) {
			return true
		}
	}
	return false
}

func (w *walk) leaves() error {
	return protocol.Errorf(protocol.CodePermissionDenied, "%q goes through a link that leaves its folder", w.asked)
}

func (w *walk) wrong(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.Errorf(protocol.CodeNotFound, "%q does not exist", w.asked)
	case errors.Is(err, fs.ErrPermission):
		return protocol.Errorf(protocol.CodePermissionDenied, "the machine does not let Bivouac open %q", w.asked)
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%q cannot be opened: %s", w.asked, reason(err))
}

package bubblewrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"bivouac/edge/protocol"

	"golang.org/x/sys/unix"
)

const workspaceInside = "/workspace"

// workspace is a host folder as one run sees it.
type workspace struct {
	host      string
	root      *os.Root
	protected []guard
	made      []string // folders made to have something to protect
}

// guard is one protected path and the folders above it.
type guard struct {
	name    string
	parents []string
}

// openWorkspace checks protected paths. A link on the way is refused: what is
// mounted must be what was named.
func openWorkspace(host string, protected []string, stage *stage) (*workspace, error) {
	if st, err := os.Lstat(host); err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	} else if !st.IsDir() {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the workspace %s is not a folder", host)
	}
	at, err := stage.path(host)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	w := &workspace{host: host, root: root}
	for _, p := range protected {
		if err := w.protect(path.Clean(p)); err != nil {
			root.Close()
			return nil, err
		}
	}
	return w, nil
}

func (w *workspace) close() { w.root.Close() }

// protect records name, or the first folder on the way to it that is absent:
// then an empty folder is made there, which nobody inside can fill.
func (w *workspace) protect(name string) error {
	var parents []string
	parts := strings.Split(name, "/")
	for i := range parts {
		at := strings.Join(parts[:i+1], "/")
		st, err := w.root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := w.root.Mkdir(at, 0o555); err != nil {
				return fmt.Errorf("reserve the protected path %s: %w", at, err)
			}
			w.made = append(w.made, at)
			w.protected = append(w.protected, guard{at, parents})
			return nil
		case err != nil:
			return fmt.Errorf("look at the protected path %s: %w", at, err)
		case st.Mode()&fs.ModeSymlink != 0:
			return protocol.Errorf(protocol.CodeFailedPrecondition,
				"the protected path %s goes through the link %s; remove the link from the workspace", name, at)
		}
		if i < len(parts)-1 {
			parents = append(parents, at)
		}
	}
	w.protected = append(w.protected, guard{name, parents})
	return nil
}

// mount shows the workspace and, over it, the protected paths read-only. Every
// folder above one becomes a mount of its own: a mount point cannot be renamed,
// and renaming the parent would put another file at the protected path.
func (w *workspace) mount(l *layout, breach breach) error {
	if err := l.bind("--bind-fd", w.host, workspaceInside); err != nil {
		return err
	}
	if breach.writableProtected {
		return nil
	}
	mounted := map[string]bool{}
	for _, g := range w.protected {
		for _, p := range g.parents {
			if mounted[p] || breach.shallowProtected {
				continue
			}
			mounted[p] = true
			if err := w.bind(l, "--bind-fd", p); err != nil {
				return err
			}
		}
	}
	for _, g := range w.protected {
		if err := w.bind(l, "--ro-bind-fd", g.name); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a name below the workspace onto itself. os.Root resolves it, so it
// stays below whatever another process does meanwhile.
func (w *workspace) bind(l *layout, option, name string) error {
	dir, err := w.root.OpenRoot(path.Dir(name))
	if err != nil {
		return fmt.Errorf("open the protected path %s: %w", name, err)
	}
	defer dir.Close()
	parent, err := dir.Open(".")
	if err != nil {
		return fmt.Errorf("open the protected path %s: %w", name, err)
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), path.Base(name), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the protected path %s: %w", name, err)
	}
	l.add(option, l.pass(os.NewFile(uintptr(fd), name)), path.Join(workspaceInside, name))
	return nil
}

// own gives every file to the sandbox's uid. It follows no link and runs before
// the first process of the group, so nobody moves the tree meanwhile.
func own(root *os.Root, uid, gid int) error {
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := root.Lstat(name)
		if err != nil {
			return err
		}
		if s, ok := st.Sys().(*unixStat); ok && int(s.Uid) == uid && int(s.Gid) == gid {
			return nil
		}
		return root.Lchown(name, uid, gid)
	})
}

// usage is what a tree occupies, hard links counted once.
func usage(root *os.Root) (int64, error) {
	var total int64
	linked := map[uint64]bool{}
	err := fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // gone meanwhile, or closed even to us
		}
		if err != nil {
			return err
		}
		st, err := root.Lstat(name)
		if err != nil {
			return nil
		}
		if s, ok := st.Sys().(*unixStat); ok {
			if s.Nlink > 1 && !st.IsDir() {
				if linked[s.Ino] {
					return nil
				}
				linked[s.Ino] = true
			}
			total += s.Blocks * 512
		}
		return nil
	})
	return total, err
}

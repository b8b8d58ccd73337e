package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// needed are the controllers without which nothing is promised.
var needed = []string{"memory", "pids", "cpu"}

// ownLeaf is where a daemon moves itself in its delegated group: a group that
// hands controllers to children may hold no process.
const ownLeaf = "bivouac-self"

// Tree is the place where groups are made.
type Tree struct {
	unified string            // our directory in cgroup2: kills, and limits if full
	full    bool              // the unified hierarchy has the controllers
	mount   string            // of the unified hierarchy, if full and our directory was made by us
	v1      map[string]string // controller → our directory
	// freezer is our directory in the v1 freezer hierarchy, where that is what freezes.
	freezer string
}

// Detect finds where this process may make groups. parent names the folder
// below a hierarchy's root ("bivouac" when empty); a delegated cgroup v2 group
// of our own (a systemd unit with Delegate=yes, an allocation) comes first.
func Detect(parent string) (*Tree, error) { return detect(parent, false) }

// DetectV1 is Detect on a machine where no unified hierarchy is mounted.
func DetectV1(parent string) (*Tree, error) { return detect(parent, true) }

func detect(parent string, v1 bool) (*Tree, error) {
	l, err := readLayout("/proc/self/mountinfo", "/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	if v1 {
		l.unified = ""
	}
	if parent == "" {
		parent = "bivouac"
	}
	if t, err := detectV2(l, parent); err == nil {
		return t, nil
	} else if len(l.v1) == 0 {
		return nil, err
	}
	return detectV1(l, parent)
}

func detectV2(l layout, parent string) (*Tree, error) {
	if l.unified == "" {
		return nil, errNone("no cgroup hierarchy is mounted here; mount what this kernel has: `%s`", mountAll(hierarchies(), append(slices.Clone(needed), "freezer"), true))
	}
	var problems []error
	own := strings.TrimSuffix(l.own[""], "/"+ownLeaf)
	if own != "/" && own != "" && !strings.HasPrefix(own, "/..") {
		err := delegate(filepath.Join(l.unified, own), true)
		if err == nil {
			return &Tree{unified: filepath.Join(l.unified, own), full: true}, nil
		}
		problems = append(problems, err)
	}
	t := &Tree{unified: filepath.Join(l.unified, parent), full: true, mount: l.unified}
	err := t.prepare()
	if err == nil {
		return t, nil
	}
	problems = append(problems, err)
	return nil, errNone("no cgroup v2 group with %s may be used (%v); %s", strings.Join(needed, ", "), errors.Join(problems...), remedyV2(hierarchies(), os.Geteuid()))
}

// remedyV2 is what helps where the unified hierarchy gives nothing: the rights for it,
// the hierarchies of version 1 that have the controllers, or, to root in a container or
// a namespace, somebody outside of it.
func remedyV2(v1 map[string][]string, uid int) string {
	switch {
	case uid != 0:
		return "run the edge as root, or in a systemd unit with Delegate=yes"
	case slices.ContainsFunc(needed, func(c string) bool { return held(v1, c) }):
		return "the kernel has them in hierarchies of version 1; mount those: `" + mountAll(v1, append(slices.Clone(needed), "freezer"), true) + "`"
	}
	return fmt.Sprintf("root may do no more here: outside of this container or namespace hand them to its group, `echo '+%s' > /sys/fs/cgroup/GROUP/cgroup.subtree_control` for each group above it, or run the edge there",
		strings.Join(needed, " +"))
}

// prepare makes our directories, which Retire may have removed. In the unified
// hierarchy each one above a group has to hand out the controllers.
func (t *Tree) prepare() error {
	if t.full && t.mount == "" {
		return delegate(t.unified, false) // our unit's own
	}
	if t.full {
		if err := delegate(t.mount, false); err != nil {
			return err
		}
		below, err := filepath.Rel(t.mount, t.unified)
		if err != nil {
			return err
		}
		at := t.mount
		for part := range strings.SplitSeq(below, "/") {
			at = filepath.Join(at, part)
			if err := errors.Join(ensure(at), delegate(at, false)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, d := range t.dirs() {
		if err := ensure(d); err != nil {
			return err
		}
	}
	return nil
}

// Retire removes our directories where no group is in them. Another process that
// makes a group at the same time makes them again.
func (t *Tree) Retire() error {
	if t.full && t.mount == "" {
		return t.undelegate()
	}
	var errs []error
	for _, d := range t.dirs() {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, &os.PathError{Op: "rmdir", Path: d, Err: err})
		}
	}
	return errors.Join(errs...)
}

// undelegate makes our unit's group one that takes processes again, when no group is
// left in it: otherwise the service manager could not start the unit again.
func (t *Tree) undelegate() error {
	groups, err := t.List()
	if err != nil || len(groups) > 0 {
		return err
	}
	err = write(t.unified, "cgroup.subtree_control", "-"+strings.Join(needed, " -"))
	if errors.Is(err, unix.EBUSY) {
		return nil // somebody made a group just now
	}
	return err
}

// delegate makes dir hand the needed controllers to its children; with move,
// this process first leaves dir for a leaf, and comes back if that was in vain.
func delegate(dir string, move bool) error {
	have := controllersOf(dir)
	for _, c := range needed {
		if !have[c] {
			return fmt.Errorf("%s lacks the %s controller", dir, c)
		}
	}
	pid, leaf := fmt.Sprint(os.Getpid()), filepath.Join(dir, ownLeaf)
	if move {
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := write(leaf, "cgroup.procs", pid); err != nil {
			return err
		}
	}
	err := write(dir, "cgroup.subtree_control", "+"+strings.Join(needed, " +"))
	if err != nil && move {
		err = errors.Join(err, write(dir, "cgroup.procs", pid), unix.Rmdir(leaf))
	}
	return err
}

func detectV1(l layout, parent string) (*Tree, error) {
	t := &Tree{v1: map[string]string{}}
	for _, c := range needed {
		mount, ok := l.v1[c]
		if !ok {
			return nil, errNone("no cgroup hierarchy that is mounted here has the %s controller; mount it: `%s`", c, mountAll(hierarchies(), []string{c}, false))
		}
		dir := filepath.Join(mount, parent)
		if err := ensure(dir); err != nil {
			return nil, errNone("control groups may not be made by this user (%v); to have limits over an attempt, run the edge as root, "+
				"or in a systemd user unit with Delegate=yes where cgroup v2 is used, or let root give it a folder in each hierarchy: "+
				"`sudo mkdir -p %s; sudo chown -R %d %s`, and say cgroup = %q in edge.hcl", err, given(l, parent), os.Geteuid(), given(l, parent), parent)
		}
		t.v1[c] = dir
	}
	if l.unified != "" && mayWrite(filepath.Join(l.unified, "cgroup.procs")) == nil { // or nothing may be born below
		dir := filepath.Join(l.unified, parent)
		if err := ensure(dir); err == nil {
			t.unified = dir
		}
	}
	t.useFreezer(l, parent)
	return t, nil
}

// given are the folders that root has to make for another user, as a shell names
// them.
func given(l layout, parent string) string {
	var all []string
	for _, c := range append(needed, "freezer") {
		if mount, ok := l.v1[c]; ok {
			all = append(all, filepath.Join(mount, parent))
		}
	}
	return strings.Join(all, " ")
}

// ensure makes our folder; root may have made it before for itself.
func ensure(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return mayWrite(dir)
}

func mayWrite(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// dirs are our directories, each once: v1 hierarchies may hold two controllers.
func (t *Tree) dirs() []string {
	seen := map[string]bool{}
	for _, d := range t.v1 {
		seen[d] = true
	}
	for _, d := range []string{t.unified, t.freezer} {
		if d != "" {
			seen[d] = true
		}
	}
	var all []string
	for d := range seen {
		all = append(all, d)
	}
	sort.Strings(all)
	return all
}

// List names all groups that exist in any hierarchy.
func (t *Tree) List() ([]string, error) {
	seen := map[string]bool{}
	for _, d := range t.dirs() {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != ownLeaf {
				seen[e.Name()] = true
			}
		}
	}
	var names []string
	for n := range seen {
		names = append(names, n)
	}
	sort.Strings(names)
	return names, nil
}

// Kind names the mechanism for people.
func (t *Tree) Kind() string {
	switch {
	case t.full:
		return "cgroup v2"
	case t.unified != "":
		return "cgroup v1 with a unified hierarchy"
	}
	return "cgroup v1"
}

func write(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0)
}

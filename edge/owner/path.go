package owner

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// machinePaths hold sockets, devices and secrets of the whole machine: a
// toolchain there would open them to sandboxed code.
var machinePaths = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/boot"}

// sandboxPaths are those at which sandboxed code has places of its own: what the
// host has there cannot be shown at the same path.
var sandboxPaths = []string{"/tmp", "/workspace", "/home/agent", CachesInside}

func (r *reader) name(b *hcl.Block, kind string, twice bool) {
	switch name := b.Labels[0]; {
	case !namePattern.MatchString(name):
		r.say(b.DefRange, "%s %q: a name has 1 to 63 lower-case letters, digits, _ and -", kind, name)
	case twice:
		r.say(b.DefRange, "there are two %ss named %q", kind, name)
	}
}

func (r *reader) hostPort(at hcl.Range, address string) {
	if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
		r.say(at, "broker must be host:port, %q is not", address)
	}
}

// directory must be an absolute path to one, and not the root of the machine.
func (r *reader) directory(at hcl.Range, what, path string) {
	if !filepath.IsAbs(path) {
		r.say(at, "%s: %q is not absolute", what, path)
		return
	}
	if filepath.Dir(filepath.Clean(path)) == filepath.Clean(path) {
		r.say(at, "%s: %q is the whole machine: name a folder in it", what, path)
		return
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		r.say(at, "%s: %q cannot be opened: %v; mend it with `%s`, or name another", what, path, err, openTo(path))
	case err != nil:
		r.say(at, "%s: %q cannot be found: make it with `mkdir -p %s`, or name one that is there", what, path, path)
	case !info.IsDir():
		r.say(at, "%s: %q is not a directory", what, path)
	}
}

// opened refuses a folder that this user cannot open while it is being given. In a file
// it is no mistake: actions in it fail, others do not.
func (r *reader) opened(at hcl.Range, what, path string) {
	info, err := os.Stat(path)
	if !r.flags || err != nil || !info.IsDir() {
		return // said by directory
	}
	if mend, err := Opens(path); err != nil {
		r.say(at, "%s: %q cannot be opened: %v; mend it with `%s`, or name another", what, path, err, mend)
	}
}

func (r *reader) notInside(at hcl.Range, what, path string, private []string) {
	for _, p := range private {
		if inside(path, p) {
			r.say(at, "%s: %q lies in Bivouac's own directory %s", what, path, p)
		}
	}
}

// readOnlyPath is of what sandboxed code may see.
func (r *reader) readOnlyPath(at hcl.Range, what, path string, private []string) {
	for _, m := range machinePaths {
		if inside(path, m) {
			r.say(at, "%s: %q is a place of the whole machine: sandboxed code must not see it", what, path)
		}
	}
	for _, p := range private {
		if inside(path, p) || inside(p, path) {
			r.say(at, "%s: %q would show Bivouac's own directory %s to sandboxed code", what, path, p)
		}
	}
}

// insideFree: a toolchain is seen at its own path.
func (r *reader) insideFree(at hcl.Range, t Toolchain) {
	for _, own := range sandboxPaths {
		if inside(t.Path, own) {
			r.say(at, "toolchain %s: %q lies in %s, which sandboxed code has for itself: put it elsewhere", t.Name, t.Path, own)
		}
	}
}

// inside compares real paths where they exist.
func inside(path, dir string) bool {
	path, dir = real(path), real(dir)
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

func real(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	return filepath.Clean(path)
}

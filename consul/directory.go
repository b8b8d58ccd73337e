package consul

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
)

const (
	// settle lets an editor finish before the files are read.
	settle = 50 * time.Millisecond
	// rescan finds what a lost notification hid.
	rescan = 15 * time.Second
)

// Directory is the port on files: every *.hcl and *.json in one directory is an
// entry.
type Directory struct {
	path string
	log  *slog.Logger
	set  atomic.Pointer[Set]

	// last is what each file named when it was last read: its destination stays
	// denied while the file is broken. Only load uses it.
	last map[string]string
	seen map[string]string // content by file, to tell a change
}

// OpenDirectory reads the entries once. Errors in entries deny and are logged;
// a directory that cannot be read is an error.
func OpenDirectory(path string, log *slog.Logger) (*Directory, error) {
	d := &Directory{path: path, log: log, last: map[string]string{}, seen: map[string]string{}}
	d.set.Store(NewSet())
	if _, err := d.load(); err != nil {
		return nil, err
	}
	return d, nil
}

// Location of the directory, for people.
func (d *Directory) Location() string {
	if abs, err := filepath.Abs(d.path); err == nil {
		return abs
	}
	return d.path
}

// Decide evaluates one pair and one request by the newest entries; see Set.Decide.
func (d *Directory) Decide(source, destination string, r *Request) Decision {
	return d.set.Load().Decide(source, destination, r)
}

// load reads every file and reports whether anything changed.
func (d *Directory) load() (changed bool, err error) {
	names, err := d.files()
	if err != nil {
		return false, err
	}
	now := map[string]string{}
	var good []Intention
	bad := map[string]*ParseError{}
	for _, name := range names {
		src, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // it went between listing and reading
		}
		if err != nil {
			bad[name] = &ParseError{Err: protocol.Errorf(protocol.CodeInvalidArgument, "%s cannot be read: %w", name, err)}
			now[name] = "unreadable"
			continue
		}
		now[name] = string(src)
		in, err := Parse(src, name)
		var broken *ParseError
		if errors.As(err, &broken) {
			bad[name] = broken
			continue
		}
		good, d.last[name] = append(good, in), in.Destination
	}
	if maps.Equal(now, d.seen) {
		return false, nil
	}
	d.seen = now
	d.set.Store(d.join(good, bad))
	return true, nil
}

// join makes the set: what a broken file named, or named before, is denied.
func (d *Directory) join(good []Intention, bad map[string]*ParseError) *Set {
	set := NewSet(good...)
	for name, broken := range bad {
		why := "the entry has an error and allows nothing: " + broken.Error()
		d.log.Error("a path entry is refused; its destination is denied", "file", name, "destination", broken.Destination, "error", broken.Error())
		known := false
		for _, destination := range []string{broken.Destination, d.last[name]} {
			if destination != "" {
				set.deny(destination, why)
				known = true
			}
		}
		if !known {
			set.noWildcard = why
		}
	}
	for destination, why := range set.broken {
		d.log.Warn("a destination is denied", "destination", destination, "reason", why)
	}
	for name := range d.last {
		if _, there := d.seen[name]; !there {
			delete(d.last, name)
		}
	}
	return set
}

func (d *Directory) files() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the paths directory cannot be read: %w; make it with: mkdir -p %s", err, d.path)
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); (ext == ".hcl" || ext == ".json") && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(d.path, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Closed refuses a directory of paths, or files in it, that others can change.
func Closed(path string) error {
	files, err := (&Directory{path: path}).files()
	if err != nil {
		return nil // whoever opens it says why
	}
	return filemode.Policy(append(files, path)...)
}

// Run watches until ctx ends and calls changed after every change. A directory
// that can no longer be read denies everything until it can.
func (d *Directory) Run(ctx context.Context, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the paths directory cannot be watched: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(d.path); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the paths directory cannot be watched: %w", err)
	}
	next := time.NewTimer(0) // what changed between Open and Run
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return nil
			}
			next.Reset(settle)
		case err := <-watcher.Errors:
			d.log.Warn("watching the paths directory", "error", err)
			next.Reset(settle)
		case <-next.C:
			next.Reset(rescan)
			if d.refresh() {
				changed()
			}
		}
	}
}

func (d *Directory) refresh() bool {
	changed, err := d.load()
	if err == nil {
		return changed
	}
	if len(d.seen) == 0 {
		return false
	}
	d.log.Error("every path is denied", "error", err)
	d.seen = map[string]string{}
	d.set.Store(NewSet())
	return true
}

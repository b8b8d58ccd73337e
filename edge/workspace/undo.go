package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// replacing is one call of replace.
type replacing struct {
	root    *os.Root
	results []result
	added   map[string]bool // names that the patch leaves in place
	prefix  string          // of the names that are ours
	done    []step          // the last one may be half done
}

// step is the way back from one change.
type step struct {
	name    string
	deleted bool
	kept    string   // where the original lies; empty: there was none
	placed  bool     // the new file is there
	made    []string // folders, outermost first
}

// tidy removes the temporary files that were not needed.
func (r *replacing) tidy() {
	for i := range r.results {
		if temp := r.results[i].temp; temp != "" {
			r.root.Remove(temp)
		}
	}
}

// commit makes one change and notes the way back from it.
func (r *replacing) commit(i int) error {
	res := &r.results[i]
	r.done = append(r.done, step{name: res.name, deleted: res.deleted})
	s := &r.done[len(r.done)-1]
	if err := r.keep(s, fmt.Sprintf("%skept-%d", r.prefix, i)); err != nil {
		return err
	}
	if res.deleted {
		pruneEmpty(r.root, path.Dir(res.name))
		return nil
	}
	if err := r.folder(s, path.Dir(res.name)); err != nil {
		return err
	}
	if err := r.root.Rename(res.temp, res.name); err != nil {
		return err
	}
	res.temp, s.placed = "", true
	return nil
}

// keep gives the original a second name, or where that cannot be another one. A
// deleted file is moved, out of every folder that must make room for a file.
func (r *replacing) keep(s *step, as string) error {
	st, err := lstatReal(r.root, s.name)
	if !s.deleted && errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("it is %s now", kindOf(st.Mode()))
	}
	dir := path.Dir(s.name)
	for above := dir; above != "."; above = path.Dir(above) {
		if r.added[above] {
			dir = path.Dir(above)
		}
	}
	kept := path.Join(dir, as)
	if s.deleted || r.root.Link(s.name, kept) != nil {
		if err := r.root.Rename(s.name, kept); err != nil {
			return err
		}
	}
	s.kept = kept
	return nil
}

// folder makes a folder with all above it.
func (r *replacing) folder(s *step, dir string) error {
	if dir == "." {
		return nil
	}
	if st, err := r.root.Lstat(dir); err == nil && st.IsDir() {
		return nil
	}
	if err := r.folder(s, path.Dir(dir)); err != nil {
		return err
	}
	if err := r.root.Mkdir(dir, 0o777); err != nil { // the umask applies
		return err
	}
	s.made = append(s.made, dir)
	return nil
}

// undo takes the changes back, the last one first, and says what became of it.
func (r *replacing) undo(name string, cause error) error {
	var lost []string
	for _, s := range slices.Backward(r.done) {
		if err := r.back(s); err != nil {
			where := "it was not there before"
			if s.kept != "" {
				where = "what it was is in " + s.kept
			}
			lost = append(lost, fmt.Sprintf("%q (%v; %s)", s.name, err, where))
		}
	}
	if len(lost) > 0 {
		return protocol.Errorf(protocol.CodeDataLoss, "%q cannot be replaced: %w; these files were changed and cannot be put back: %s", name, cause, strings.Join(lost, ", "))
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%q cannot be replaced: %w; nothing was changed: what had been replaced was put back", name, cause)
}

func (r *replacing) back(s step) error {
	if s.kept == "" && s.placed {
		if err := r.root.Remove(s.name); err != nil {
			return err
		}
	}
	for _, dir := range slices.Backward(s.made) {
		r.root.Remove(dir) // somebody may have put a file there
	}
	if s.kept == "" {
		return nil
	}
	if err := r.root.MkdirAll(path.Dir(s.name), 0o777); err != nil {
		return err
	}
	if err := r.root.Rename(s.kept, s.name); err != nil {
		return err
	}
	r.root.Remove(s.kept) // a rename between two names of one file does nothing
	return nil
}

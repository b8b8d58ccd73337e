package blob

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Older gives the digests of blobs that were last put before an instant, until
// each says no. Putting one that is there already counts.
func (d *Dir) Older(before time.Time, each func(digest string) (more bool)) error {
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went meanwhile
		case err != nil:
			return err
		case e.IsDir() && filepath.Dir(path) == d.path && e.Name() == tmp:
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		place, err := d.place(e.Name())
		if err != nil || place != path {
			return nil // it is none of ours
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			return nil
		}
		if !each(e.Name()) {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return d.problem(err)
	}
	return nil
}

// renew makes a blob that is put again as young as a new one, so that a sweep
// leaves it to who puts it.
func (d *Dir) renew(place string) error {
	now := time.Now()
	return os.Chtimes(place, now, now)
}

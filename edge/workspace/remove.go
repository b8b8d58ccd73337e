package workspace

import (
	"errors"
	"io/fs"
	"os"
)

// Remove deletes a folder in which code ran, also what that code closed to us.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	root, oerr := os.OpenRoot(dir)
	if oerr != nil {
		return err
	}
	defer root.Close()
	opened := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			if st, err := root.Lstat(name); err == nil && st.Mode().Perm()&0o700 != 0o700 {
				if err := root.Chmod(name, 0o700); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(opened, os.RemoveAll(dir))
}

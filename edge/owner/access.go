package owner

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"

	"bivouac/edge/shellword"
)

// Opens tries to list a folder, and to go into it, as the user that runs this. Where
// that fails it says why, and the command that mends it.
func Opens(path string) (mend string, err error) {
	if _, err = os.ReadDir(path); err == nil {
		_, err = os.Stat(path + string(filepath.Separator) + ".") // what may be listed may be closed
	}
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, fs.ErrPermission):
		return openTo(path), err
	case errors.Is(err, fs.ErrNotExist):
		return "mkdir -p " + shellword.Quote(path), err
	}
	return "ls -ld " + shellword.Quote(path), err
}

// openTo is the command that lets this user into a folder: it is made theirs, or, where
// one above it is closed, that one is opened to be passed.
func openTo(path string) string {
	for at, above := filepath.Clean(path), ""; ; at = above {
		if above = filepath.Dir(at); above == at {
			break
		}
		if _, err := os.Stat(above); err != nil {
			continue // a higher one is closed
		}
		if _, err := os.Stat(at); errors.Is(err, fs.ErrPermission) {
			return "sudo chmod o+x " + shellword.Quote(above)
		}
		break
	}
	return "sudo chown " + userName() + " " + shellword.Quote(path) + " && sudo chmod u+rwx " + shellword.Quote(path)
}

// userName of this process, which runs the edge or will.
func userName() string {
	u, err := user.Current()
	if err != nil {
		return "$USER"
	}
	return cmp.Or(u.Username, u.Uid)
}

//go:build !windows

package filemode

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func TestWhatOthersCanTouchIsRefused(t *testing.T) {
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "key"), filepath.Join(dir, "data")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		check func(...string) error
		path  string
		mode  fs.FileMode
		mend  string // empty: it is taken
	}{
		{Secret, file, 0o600, ""},
		{Secret, file, 0o400, ""},
		{Secret, file, 0o640, "chmod 600 " + file},
		{Secret, file, 0o604, "chmod 600 " + file},
		{Secret, file, 0o620, "chmod 600 " + file},
		{Secret, folder, 0o700, ""},
		{Secret, folder, 0o777, "chmod 700 " + folder},
		{Secret, folder, 0o711, "chmod 700 " + folder},
		{Policy, file, 0o644, ""},
		{Policy, file, 0o600, ""},
		{Policy, file, 0o664, "chmod go-w " + file},
		{Policy, file, 0o666, "chmod go-w " + file},
		{Policy, folder, 0o755, ""},
		{Policy, folder, 0o777, "chmod go-w " + folder},
		{Secret, filepath.Join(dir, "none"), 0, ""},
	} {
		if c.mode != 0 {
			if err := os.Chmod(c.path, c.mode); err != nil {
				t.Fatal(err)
			}
		}
		err := c.check(c.path)
		if c.mend == "" {
			if err != nil {
				t.Errorf("%s with %04o: %v", c.path, c.mode, err)
			}
			continue
		}
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "mend it with: "+c.mend) || protocol.Mend(err, "") != c.mend {
			t.Errorf("%s with %04o: %v; mend %q", c.path, c.mode, err, protocol.Mend(err, ""))
		}
	}
	if got := protocol.Mend(fs.ErrClosed, "otherwise"); got != "otherwise" {
		t.Errorf("the mend of something else: %s", got)
	}
}

// All that is open is said at once.
func TestEveryPathIsNamed(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, p := range []string{one, two} {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := Secret(one, two); err == nil || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), two) {
		t.Errorf("%v", err)
	}
}

//go:build !unix

package keyring

import (
	"os"
	"path/filepath"
)

// lock only opens the file: this system has no advisory locks of the kind.
func lock(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
}

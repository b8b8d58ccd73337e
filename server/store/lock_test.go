package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac/server/store"
)

// Who takes a data directory removes what a server that died in a write left there. What
// is written meanwhile, and every other file, stays.
func TestLockSweepsUnfinishedFiles(t *testing.T) {
	dir := t.TempDir()
	make := func(name string, age time.Duration) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("half a key"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	left, underWay, own := make(".new-1", time.Hour), make(".new-2", 0), make("server.key", time.Hour)
	release, err := store.LockDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was left is there: %v", err)
	}
	for _, path := range []string{underWay, own} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

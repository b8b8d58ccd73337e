package state

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A child between fork and exec shares the open lock file; the released lock is
// free all the same, and a held one is not.
func TestReleasedLockIsFreeBesideAFork(t *testing.T) {
	d, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	shared, err := unix.Dup(descriptor(t, d.file("lock")))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(shared)
	if again, err := d.Lock(); err == nil {
		again()
		t.Error("a held lock was taken")
	}
	release()
	again, err := d.Lock()
	if err != nil {
		t.Fatalf("a released lock is not free: %v", err)
	}
	again()
}

// descriptor of this process that is open on a file.
func descriptor(t *testing.T, path string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == path {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s is not open", path)
	return 0
}

package lockfile_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/edge/lockfile"
)

// A held lock is refused and names its holder; a released one is free.
func TestOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockfile.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockfile.Take(path); !errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("a held lock: %v", err)
	}
	if got := lockfile.Holder(path); got != strconv.Itoa(os.Getpid()) {
		t.Errorf("the holder is %s", got)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := lockfile.Take(path)
	if err != nil {
		t.Fatalf("a released lock: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
	if _, err := lockfile.Take(filepath.Join(t.TempDir(), "nowhere", "lock")); err == nil || errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// A file that is open for reading alone is locked as it is.
func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o400); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, err := lockfile.Hold(open())
	if err != nil {
		t.Fatal(err)
	}
	other := open()
	defer other.Close()
	if _, err := lockfile.Hold(other); !errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("a held lock: %v", err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := lockfile.Hold(other); err != nil {
		t.Errorf("a released lock: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
}

// A child between fork and exec shares the open file, as a duplicate does: the
// released lock is free all the same.
func TestReleaseBesideAFork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockfile.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := unix.Dup(descriptor(t, "/proc/self/fd", path))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(shared)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := lockfile.Take(path)
	if err != nil {
		t.Fatalf("the lock went to whom shares the file: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}

// A holder is killed while a child of it is between fork and exec: the child has the
// lock for a moment more, and the next process waits for it, also when the holder died
// before it had said who it was. Behind a holder that lives nobody waits.
func TestDeadHolderIsOutlived(t *testing.T) {
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"it is dead": strconv.Itoa(killed.Process.Pid) + "\n", "it said nothing": ""} {
		t.Run(name, func(t *testing.T) { outlives(t, content) })
	}
}

// outlives takes a lock that a child of somebody gone has for a moment more.
func outlives(t *testing.T, content string) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	child, err := lockfile.Hold(f)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	time.AfterFunc(50*time.Millisecond, func() { released <- child.Release() })
	l, err := lockfile.Take(path)
	if err := errors.Join(err, <-released); err != nil {
		t.Fatalf("the holder is gone: %v", err)
	}
	if _, err := lockfile.Take(path); !errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("the holder lives: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// A program that is started while the lock is held does not have the file.
func TestNoChildInherits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockfile.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	fds := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/fd"
	if n := descriptor(t, fds, path); n >= 0 {
		t.Errorf("the child has the lock file as %d", n)
	}
	if descriptor(t, "/proc/self/fd", path) < 0 {
		t.Error("the check finds nothing at all")
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
}

// descriptor in a directory of /proc that is open on a file; -1 when none is.
func descriptor(t *testing.T, dir, path string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasSuffix(to, path) {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return -1
}

package edge

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// A turn that waits is looked at as soon as something happens in its directory, and that
// is watched no longer than it waits.
func TestAwaitedTurnIsLookedAtWhenItsDirectoryChanges(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var changed func(string) bool
		watched := make(chan string, 1)
		m.cfg.WatchAttempts = func(ctx context.Context, folders <-chan string, c func(string) bool) error {
			changed = c
			select {
			case folder := <-folders:
				watched <- folder
			case <-ctx.Done():
			}
			return nil
		}
		var looks atomic.Int64
		m.cfg.FreeFunc = func(string) (int64, error) { looks.Add(1); return 1 << 40, nil }
		m.run()
		m.connected()
		a, job := m.awaitedTurn()
		if folder := <-watched; folder != a.Path() {
			t.Errorf("%s is watched", folder)
		}
		synctest.Wait()
		now, before := time.Now(), looks.Load()
		if changed(m.dir.Attempt(newAttempt()).Path()) {
			t.Error("a directory is of interest that nobody waits for")
		}
		if synctest.Wait(); looks.Load() != before {
			t.Error("it was looked at because of another one")
		}
		if !changed(a.Path()) {
			t.Error("its directory is of no interest")
		}
		if synctest.Wait(); looks.Load() == before || !time.Now().Equal(now) {
			t.Errorf("%d looks after %d", looks.Load(), before)
		}
		w := m.task(a, job)
		m.await("the turn to begin", 10*time.Second, func() bool { return w.see(func() bool { return w.begun != nil }) })
		if synctest.Wait(); changed(a.Path()) {
			t.Error("its directory is watched after the claim")
		}
	})
}

// Folders are watched until they are of no interest. One that cannot be watched disturbs no
// other.
func TestWatchFoldersTells(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	folders, told := make(chan string), make(chan string)
	var bored atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error {
		return WatchFolders(ctx, folders, func(folder string) bool {
			more := !bored.Load()
			select {
			case told <- folder:
			case <-ctx.Done():
			}
			return more
		})
	})
	wait := func(what, want string) {
		t.Helper()
		select {
		case folder := <-told:
			if folder != want {
				t.Fatalf("%s: told of %s, want %s", what, folder, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing was told: %s", what)
		}
	}
	makes := func(folder, name string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	folders <- filepath.Join(one, "missing") // is left to the slow look
	folders <- one
	wait("it watches", one)
	makes(one, "a")
	wait("a change", one)
	bored.Store(true)
	makes(one, "b")
	wait("the last change", one)
	bored.Store(false)
	folders <- other // and so the first is not watched any more
	wait("it watches", other)
	makes(one, "c")
	makes(other, "a")
	wait("a change of the other", other)
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// A directory of another user is said as that, and not as one without a runner.
func TestDirectoryOfAnotherUser(t *testing.T) {
	d := create(t)
	if err := d.SaveEnrolment(state.Enrolment{Server: "h:1"}); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(d.Path()); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(d.Path(), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(d.Path(), 0o700) })
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is nobody's, ends with this
		if os.Geteuid() == 0 {
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				got <- err
				return
			}
		}
		_, err := state.Open(d.Path())
		got <- err
	}()
	err := <-got
	if protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "ls -ld "+d.Path()) || strings.Contains(err.Error(), "join") {
		t.Errorf("another user's: %v", err)
	}
	if err := os.Chmod(d.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Open(d.Path()); err != nil {
		t.Errorf("one's own: %v", err)
	}
	if _, err := state.Open(t.TempDir()); errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "join URL CODE") {
		t.Errorf("one without a runner: %v", err)
	}
}

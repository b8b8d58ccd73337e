package owner_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bivouac/edge/device"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
)

// asNobody judges files as a user without rights to what is root's; the thread ends
// with the test. Any other user is that already.
func asNobody(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // never unlocked: the thread is thrown away
	if err := errors.Join(unix.Setfsgid(65534), unix.Setfsuid(65534)); err != nil {
		t.Error(err)
	}
}

// A folder that this user cannot open is refused when it is given, with the command that
// mends it; one that is missing is made, and one that opens is taken.
func TestFolderThatDoesNotOpen(t *testing.T) {
	base := t.TempDir()
	for dir := base; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) { // testing makes them for one user
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	made := func(name string, mode os.FileMode) string {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(path, 0o755) })
		if name == "above" {
			if err := os.Mkdir(filepath.Join(path, "in"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	open, shut, listed, above := made("open", 0o755), made("shut it", 0), made("listed", 0o444), made("above", 0)
	done := make(chan struct{})
	go func() { // a thread of its own
		defer close(done)
		asNobody(t)
		for path, want := range map[string]string{
			open:                           "",
			shut:                           " '" + shut + "' && sudo chmod u+rwx '" + shut + "'",
			listed:                         "sudo chown ",
			filepath.Join(above, "in"):     "sudo chmod o+x " + above,
			filepath.Join(open, "missing"): "mkdir -p " + filepath.Join(open, "missing"),
		} {
			mend, err := owner.Opens(path)
			if (err == nil) != (want == "") || !strings.Contains(mend, want) {
				t.Errorf("%s: %v, mend %q, want %q", path, err, mend, want)
			}
			given := owner.Policy{Slots: 1, Folders: []device.Folder{{Name: "notes", Path: path, Actions: []string{device.List}}}}
			err = owner.CheckFlags(given)
			if want == "" && err != nil || want != "" && (protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), mend)) {
				t.Errorf("given %s: %v", path, err)
			}
		}
		// In a file it is no mistake: the daemon starts, and its doctor tells.
		if _, err := owner.Parse("edge.hcl", owner.Render(owner.Policy{Slots: 1, Folders: []device.Folder{{Name: "notes", Path: shut, Actions: []string{device.List}}}})); err != nil {
			t.Errorf("in a file: %v", err)
		}
	}()
	<-done
}

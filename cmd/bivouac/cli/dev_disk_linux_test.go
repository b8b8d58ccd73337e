package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/smalldisk"
)

// A disk that is full is what is said: by the lock of bivouac dev, and of a process
// that could write no word into its log. With room both go on, and a process is named
// by its log again. The disk is a small tmpfs in namespaces of a child process.
func TestDevSaysThatTheDiskIsFull(t *testing.T) {
	if smalldisk.Inside() == "" {
		smalldisk.Again(t, "yes")
		return
	}
	disk := t.TempDir()
	smalldisk.Mount(t, disk, "size=256k,mode=700")
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	tr := treeOf(t, map[string]string{"first": "echo mute; exit 3"})
	tr.logs = disk
	d := &dev{app: &app{}, data: filepath.Join(disk, "dev")}
	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if err := tr.spawn("first"); err != nil {
		t.Fatal(err)
	}
	<-tr.gone
	full := "the disk is full; make room on it, which `df -h " + disk
	if err := tr.failure(); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), full) || !strings.HasPrefix(err.Error(), "first ended: exit status ") {
		t.Errorf("a process on a full disk: %v", err)
	}
	if _, err := d.lock(); err == nil || !strings.Contains(err.Error(), full) || strings.Contains(err.Error(), "--data") {
		t.Errorf("the lock on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	release, err := d.lock()
	if err != nil {
		t.Fatalf("with room: %v", err)
	}
	release()
	if err := tr.failure(); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "its log ends with") {
		t.Errorf("with room: %v", err)
	}
}

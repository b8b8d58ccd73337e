package sized

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

func mounted(t *testing.T, bytes int64) (*Volume, string) {
	t.Helper()
	dir := t.TempDir()
	v, err := Mount(t.Context(), t.TempDir(), dir, bytes)
	if protocol.CodeOf(err) == protocol.CodeFailedPrecondition {
		t.Skip("NOT tested here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(v.Close(), v.Close()); err != nil {
			t.Error(err)
		}
	})
	return v, dir
}

// free space of the disk below a folder.
func free(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}

// endless gives zeros that no file system stores as a hole.
type endless struct{ block []byte }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.block), nil }

func TestVolumeHoldsWhatItSaysAndNoMore(t *testing.T) {
	const size = 64 << 20
	v, dir := mounted(t, size)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 || v.Full() {
		t.Errorf("a new volume has %v, %v, full %t", left, err, v.Full())
	}
	f, err := os.Create(filepath.Join(dir, "rightful"))
	if err == nil {
		_, err = io.CopyN(f, endless{bytes.Repeat([]byte("x"), 1<<16)}, size*9/10)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Errorf("nine tenths of it: %v", err)
	}
	g, err := os.Create(filepath.Join(dir, "greedy"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyN(g, endless{bytes.Repeat([]byte("x"), 1<<16)}, 10<<30)
	g.Close()
	if !errors.Is(err, unix.ENOSPC) || n > size/4 || !v.Full() {
		t.Errorf("10 GB more: %d bytes, %v, full %t", n, err, v.Full())
	}
	if err := os.Remove(filepath.Join(dir, "greedy")); err != nil || v.Full() {
		t.Errorf("after tidying: %v, full %t", err, v.Full())
	}
}

// A file that is written again at once, with as many bytes, has another time.
func TestVolumeTellsTimesApart(t *testing.T) {
	_, dir := mounted(t, 16<<20)
	name := filepath.Join(dir, "f")
	seen := map[int64]bool{}
	for range 3 {
		if err := os.WriteFile(name, []byte("same size"), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		seen[st.ModTime().UnixNano()] = true
		time.Sleep(20 * time.Millisecond) // more than a tick of the kernel
	}
	if len(seen) != 3 {
		t.Errorf("three writes have %d times", len(seen))
	}
}

// Nothing has a name on the disk, and the space comes back with the mount.
func TestVolumeLeavesNothing(t *testing.T) {
	scratch, dir := t.TempDir(), t.TempDir()
	before := free(t, scratch)
	v, err := Mount(t.Context(), scratch, dir, 256<<20)
	if protocol.CodeOf(err) == protocol.CodeFailedPrecondition {
		t.Skip("NOT tested here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) != 0 {
		t.Errorf("the volume's file has a name: %v, %v", left, err)
	}
	if used := int64(before) - int64(free(t, scratch)); used > 128<<20 {
		t.Logf("an empty volume, or somebody else, took %d bytes", used)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("behind the mount there is %v, %v", left, err)
	}
	if err := Release(filepath.Join(dir, "absent")); err != nil {
		t.Errorf("nothing to release: %v", err)
	}
}

func TestVolumeRefuses(t *testing.T) {
	if _, err := Mount(t.Context(), t.TempDir(), t.TempDir(), 10); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("ten bytes: %v", err)
	}
	if os.Geteuid() == 0 {
		return
	}
	if _, err := Mount(t.Context(), t.TempDir(), t.TempDir(), 64<<20); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("without root: %v", err)
	}
}

//go:build linux

package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/smalldisk"
)

// A full disk: writes are refused with what to do, reads go on, nothing that was
// answered is lost and nothing refused is there; with space again the same store
// goes on. The disk is a small tmpfs in namespaces of a child process.
func TestFullDisk(t *testing.T) {
	if dir := smalldisk.Inside(); dir != "" {
		onSmallDisk(t, dir)
		return
	}
	smalldisk.Again(t, t.TempDir())
}

func onSmallDisk(t *testing.T, dir string) {
	smalldisk.Mount(t, dir, "size=3m")
	s := openAt(t, dir)
	id, err := conversation(s, "red")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 20_000)
	var answered []string
	for i := 0; err == nil && i < 10_000; i++ {
		text := fmt.Sprint(i, long)
		if err = s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, text) }); err == nil {
			answered = append(answered, text)
		}
	}
	if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "free disk space") {
		t.Fatalf("after %d writes: %v", len(answered), err)
	}
	if err := s.Probe(t.Context()); err == nil {
		// A small write may still fit in the log; a large one does not.
		if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, long) }); err == nil {
			t.Error("the disk is full, and it takes writes")
		}
	}
	if got := said(t, s, id); len(got) != len(answered) {
		t.Errorf("%d events are there, %d were answered", len(got), len(answered))
	}
	if err := syscall.Mount("small", dir, "tmpfs", syscall.MS_REMOUNT, "size=12m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "after") }); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if got := said(t, s, id); len(got) != len(answered)+1 || got[len(got)-1] != "after" {
		t.Errorf("%d events in the end", len(got))
	}
	// A directory on a full disk is told at the start, too.
	fill(t, filepath.Join(dir, "ballast"))
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Skip(err)
	}
	if _, err := Open(t.Context(), Config{Path: filepath.Join(other, "bivouac.db")}); err == nil || protocol.CodeOf(err) == protocol.CodeInternal {
		t.Errorf("a start on a full disk: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
}

// fill writes until nothing fits any more.
func fill(t *testing.T, path string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 16, 1 << 10, 1} {
		for block := make([]byte, size); err == nil; _, err = f.Write(block) {
		}
		err = nil
	}
}

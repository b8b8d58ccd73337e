//go:build linux

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
)

// smallDisk is set in the process that has a file system of its own.
const smallDisk = "BIVOUAC_TEST_SMALL_DISK"

// A full disk: writes are refused with what to do, reads go on, nothing that was
// answered is lost and nothing refused is there; with space again the same store
// goes on. The disk is a small tmpfs in namespaces of a child process.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(smallDisk); dir != "" {
		onSmallDisk(t, dir)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EINVAL), bytes.Contains(out, []byte("no file system of its own")):
		t.Skipf("SKIPPED LOUDLY: no small disk can be made here: %v %s", err, out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !bytes.Contains(out, []byte("--- PASS: TestFullDisk")):
		t.Fatalf("it did not run:\n%s", out)
	}
}

func onSmallDisk(t *testing.T, dir string) {
	err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("small", dir, "tmpfs", 0, "size=3m"))
	if err != nil {
		t.Fatalf("no file system of its own: %v", err)
	}
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

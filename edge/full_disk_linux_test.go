package edge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
	"bivouac/test/smalldisk"
)

// An action that was done on a machine whose disk is full by then: nobody hears of
// it before its result is on the disk, and it settles by itself when there is room,
// done once. INV-4, INV-5. The disk is a small tmpfs in namespaces of a child process.
func TestResultWaitsForRoomOnTheDisk(t *testing.T) {
	if smalldisk.Inside() != "" {
		virtually(t, resultOnAFullDisk)
		return
	}
	smalldisk.Again(t, "yes")
}

func resultOnAFullDisk(t *testing.T, f *fakeServer, m *machine) {
	disk := m.dir.Journal()
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	smalldisk.Mount(t, disk, "size=256k,mode=700")
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }) // after the daemon
	m.run()
	defer m.stop()
	m.connected()
	id := newAttempt()
	work := deviceWork(device.Write, map[string]any{"path": "notes/new.txt", "content": "by the action"})
	a := &attempt{id: id, kind: protocol.KindAction, fence: 1<<32 | 1, lease: newTestLease(m)}
	a.grant(m.cfg.Elapsed(), f.terms(1<<32|1))
	if _, err := m.daemon.actions.nonce(id); err != nil {
		t.Fatal(err)
	}
	if err := m.daemon.actions.claimed(a, work.GetDevice(), nil); err != nil {
		t.Fatal(err)
	}
	ballast := fill(t, m, disk)
	m.daemon.table.add(a)
	m.daemon.startAction(a, work.GetDevice())
	m.await("the effect", 10*time.Second, func() bool {
		b, err := os.ReadFile(filepath.Join(m.notes, "new.txt"))
		return err == nil && string(b) == "by the action"
	})
	m.write("new.txt", "by hand")
	time.Sleep(5 * time.Minute) // the lease is over by then, too
	if r := f.result(id); r != nil {
		t.Errorf("the server heard of a result that is not on the disk: %v", r)
	}
	if s := m.daemon.Status(); !strings.Contains(s.LastError, "no space left") {
		t.Errorf("status says %q", s.LastError)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	m.await("the result", 2*settleEvery, func() bool { return f.result(id) != nil })
	if r := f.result(id); r.GetStatus() != protocol.ResultSucceeded {
		t.Errorf("reported as %v", r)
	}
	if got := m.read("new.txt"); got != "by hand" {
		t.Errorf("it was done again: the file holds %q", got)
	}
	if s := m.daemon.Status(); strings.Contains(s.LastError, "no space left") {
		t.Errorf("with room again status says %q", s.LastError)
	}
}

// fill leaves no room for another record on the disk of the journal.
func fill(t *testing.T, m *machine, disk string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(disk, "ballast")
	file, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = file.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for range 4096 / 32 { // what is left of the journal's last page
		if _, err = m.daemon.actions.nonce(newAttempt()); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is full and the journal grows: %v", err)
	}
	return ballast
}

//go:build linux

package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
)

// childRole makes this test binary a child that does one thing in a process, or
// a mount namespace, of its own.
const childRole = "BIVOUAC_STORE_CHILD"

func TestMain(m *testing.M) {
	role, dir, is := strings.Cut(os.Getenv(childRole), " ")
	if !is {
		os.Exit(m.Run())
	}
	var err error
	switch role {
	case "write":
		err = writeForEver(dir)
	case "fill":
		err = fillDisk(dir)
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childRole+"="+role+" "+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// writeForEver prints the number of each event after its commit.
func writeForEver(dir string) error {
	s, err := Open(context.Background(), Config{Path: filepath.Join(dir, "bivouac.db")})
	if err != nil {
		return err
	}
	id, err := conversation(s, "red")
	if err != nil {
		return err
	}
	fmt.Println(id)
	for i := 1; ; i++ {
		if err := s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, strconv.Itoa(i)) }); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// What was answered as committed is there after kill -9, whole and in order, and
// the directory is free again.
func TestKilledProcessLosesNothingCommitted(t *testing.T) {
	dir := t.TempDir()
	cmd := child(t, "write", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	id := protocol.SessionID(lines.Text())
	last := 0
	for last < 200 && lines.Scan() {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open(t.Context(), Config{Path: filepath.Join(dir, "bivouac.db")})
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), fmt.Sprint("process ", cmd.Process.Pid)) {
		t.Errorf("while the child runs as %d: %v", cmd.Process.Pid, err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // what it still said before it died
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			last = n
		}
	}
	cmd.Wait()
	texts := said(t, openAt(t, dir), id)
	if len(texts) < last || last < 200 {
		t.Fatalf("%d events after the crash, %d were committed", len(texts), last)
	}
	for i, text := range texts {
		if text != strconv.Itoa(i+1) {
			t.Fatalf("event %d says %q", i+1, text)
		}
	}
}

// A really full disk and a really read-only file system, in a mount namespace.
func TestFullAndReadOnlyDisk(t *testing.T) {
	cmd := child(t, "fill", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "cannot mount") {
		t.Skipf("SKIPPED: a full disk is not tested, mount namespaces are off here (%v %s); run as root", err, out)
	}
	if err != nil || !strings.Contains(string(out), "all as promised") {
		t.Errorf("%v\n%s", err, out)
	}
}

// fillDisk runs in its own mount namespace.
func fillDisk(dir string) error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println("cannot mount:", err)
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		fmt.Println("cannot mount:", err)
		return nil
	}
	path := filepath.Join(dir, "bivouac.db")
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	id, err := conversation(s, "red")
	if err != nil {
		return err
	}
	write := func() error {
		return s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, strings.Repeat("x", 50_000)) })
	}
	committed := 0
	for err = write(); err == nil; err = write() {
		committed++
	}
	if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "free disk space") || committed == 0 {
		return fmt.Errorf("a full disk after %d commits: %w", committed, err)
	}
	check := func(want int) error {
		return s.View(context.Background(), loop, func(tx *Tx) error {
			all, err := tx.Events(id, 0, 0)
			if err == nil && len(all) != want {
				err = fmt.Errorf("%d events, %d were committed", len(all), want)
			}
			return errors.Join(err, tx.VerifyEvents(id))
		})
	}
	if err := check(committed); err != nil {
		return fmt.Errorf("on the full disk: %w", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=32m"); err != nil {
		return err
	}
	if err := write(); err != nil {
		return fmt.Errorf("with space again: %w", err)
	}
	if err := errors.Join(check(committed+1), s.Close()); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	_, err = Open(context.Background(), Config{Path: path})
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), dir+" is on a read-only file system") {
		return fmt.Errorf("on a read-only disk: %w", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		return err
	}
	if s, err = Open(context.Background(), Config{Path: path}); err != nil {
		return fmt.Errorf("writable again: %w", err)
	}
	fmt.Println("all as promised")
	return s.Close()
}

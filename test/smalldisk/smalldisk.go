//go:build linux

// Package smalldisk runs a test on a disk that is soon full: a small tmpfs in user
// and mount namespaces of a child process. It owns the child and the mount, changes
// nothing on the machine, and skips loudly where such namespaces are not to be had.
package smalldisk

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// variable is set in the process that has a file system of its own.
const variable = "BIVOUAC_TEST_SMALL_DISK"

// unmade is what the child says when it cannot mount.
const unmade = "no file system of its own"

// Inside is the word that Again was given, in the child; empty outside of it.
func Inside() string { return os.Getenv(variable) }

// Again runs the calling test once more, in the child, and fails or skips with it.
func Again(t *testing.T, word string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+word)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EINVAL), bytes.Contains(out, []byte(unmade)):
		t.Skipf("SKIPPED LOUDLY: no small disk can be made here: %v %s", err, out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("it did not run:\n%s", out)
	}
}

// Mount puts the small disk at a directory that exists. Options are tmpfs's.
func Mount(t *testing.T, dir, options string) {
	t.Helper()
	err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("small", dir, "tmpfs", 0, options))
	if err != nil {
		t.Fatalf("%s: %v", unmade, err)
	}
}

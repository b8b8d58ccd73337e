//go:build linux

package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// The process that ended first is named with how it ended and with its log; one that
// is told to end is no failure.
func TestTreeNamesTheFirstThatEnded(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{"echo over; exit 0", "first ended by itself; its log ends with:\nover"},
		{"echo broken; exit 3", "first ended: exit status 3; its log ends with:\nbroken"},
	} {
		tr := treeOf(t, map[string]string{"first": c.script, "second": "echo also; exit 4", "stays": "exec sleep 600"})
		for _, name := range []string{"stays", "first"} {
			if err := tr.spawn(name); err != nil {
				t.Fatal(err)
			}
		}
		err := tr.watch(t.Context())
		if err == nil || err.Error() != c.want || protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("%s: %v", c.script, err)
		}
		if err := tr.spawn("second"); err != nil {
			t.Fatal(err)
		}
		<-tr.procs[2].done
		if err := tr.end(); err != nil {
			t.Error(err)
		}
		if err := tr.failure(); err == nil || err.Error() != c.want {
			t.Errorf("after the end: %v", err)
		}
	}

	tr := treeOf(t, map[string]string{"stays": "exec sleep 600"})
	if err := tr.spawn("stays"); err != nil {
		t.Fatal(err)
	}
	if err := tr.end(); err != nil {
		t.Error(err)
	}
	if err := tr.failure(); err != nil {
		t.Errorf("a process that was told to end: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.watch(over); err == nil || strings.Contains(err.Error(), "stays") {
		t.Errorf("the watch of a tree that was ended: %v", err)
	}
}

// treeOf shell scripts in place of binaries.
func treeOf(t *testing.T, scripts map[string]string) *tree {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := newTree(filepath.Join(dir, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	tr.bin = dir
	return tr
}
